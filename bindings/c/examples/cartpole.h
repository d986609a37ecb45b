/* The model of the examples: balances the rehearsal gateway's cart-pole. */

#ifndef CARTPOLE_H
#define CARTPOLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Position, velocity, angle and angular velocity, four little-endian floats in front of the picture; 1 pushes right,
 * 0 left, -1: this is no cart-pole. The machine is taken to be little-endian, too. */
static inline int cartpole(const uint8_t *payload, size_t length) {
    static const float weights[4] = {0.1F, 0.4F, 4.0F, 1.0F};
    float state[4];
    float pressure = 0.0F;
    size_t i;
    if (length < sizeof state) {
        return -1;
    }
    memcpy(state, payload, sizeof state);
    for (i = 0; i < 4; i++) {
        pressure += state[i] * weights[i];
    }
    return pressure > 0.0F;
}

#endif
