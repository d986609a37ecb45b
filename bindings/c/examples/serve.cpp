// A whole worker in C++, with the loop that sidecar.hpp has: balances the rehearsal gateway's cart-pole.
//
//     sidecar --shm /dev/shm/obs0 ... -- ./serve           (the path comes in SIDECAR_SHM)
//     ./serve /dev/shm/obs0 [/dev/shm/obs1 ...]            (one model for several sidecars)

#include <array>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "cartpole.h"
#include "sidecar.hpp"

int main(int count, char **arguments) {
    std::vector<std::string_view> regions(arguments + 1, arguments + count);
    if (const char *region = std::getenv("SIDECAR_SHM"); regions.empty() && region != nullptr) {
        regions.emplace_back(region);
    }
    if (regions.empty()) {
        std::cerr << "usage: serve REGION... (or SIDECAR_SHM=REGION serve)\n";
        return EXIT_FAILURE;
    }
    sidecar::Hooks hooks;
    hooks.on_warmup = [] { /* Here the model is loaded. */ };
    hooks.on_open = [](const sidecar::Event &event) { std::cout << "serve: session " << event.session() << std::endl; };
    hooks.on_failure = [](const std::string &text) { std::cerr << "serve: " << text << '\n'; };
    try {
        sidecar::Worker worker{regions};
        const auto act = [](const sidecar::Observation &observation) {
            const auto payload = observation.payload();
            const int push = cartpole(payload.data, payload.size);
            if (push < 0) {
                throw std::runtime_error("too short for a cart-pole observation");
            }
            return std::array<std::uint8_t, 1>{static_cast<std::uint8_t>(push)};
        };
        sidecar::serve(worker, act, hooks);
        return EXIT_SUCCESS;
    } catch (const std::exception &error) {
        std::cerr << "serve: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
