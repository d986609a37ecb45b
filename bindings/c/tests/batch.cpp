// One model for several sidecars that infers in batches: balances the cart-poles of all.
//
//     ./batch REGION...

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "../examples/cartpole.h"
#include "sidecar.hpp"

int main(int count, char **arguments) {
    sidecar::Worker worker{std::vector<std::string_view>(arguments + 1, arguments + count)};
    std::size_t largest = 0;
    for (;;) {
        auto events = worker.next_batch(8);
        if (events.empty()) {
            break;
        }
        std::vector<sidecar::Observation> batch;
        for (auto &event : events) {
            if (event.kind() == sidecar_WORKER_EVENT_WARMUP) {
                worker.ready(event.member());
            } else if (auto observation = event.take_observation()) {
                batch.push_back(std::move(observation));
            }
        }
        largest = std::max(largest, batch.size());
        for (auto &observation : batch) {
            const auto payload = observation.payload();
            const int push = payload.empty() ? 0 : cartpole(payload.data, payload.size);
            worker.answer(std::move(observation), std::vector<std::uint8_t>(1, static_cast<std::uint8_t>(push)));
        }
    }
    std::cout << "batch: " << largest << " at once at most" << std::endl;
    return worker.has_ended() && worker.next_batch(0).empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}
