/* A project of somebody else's: it finds the library, links it, and asks it something. */

#include <stdio.h>
#include <sidecar.h>

int main(void) {
    const uint32_t version = sidecar_abi_version();
    printf("sidecar %u.%u %s\n", (unsigned)(version >> 16), (unsigned)(version & 0xffff), sidecar_status_name(sidecar_OK));
    return version >> 16 == sidecar_ABI_MAJOR ? 0 : 1;
}
