// A worker in C++: balances the rehearsal gateway's cart-pole. It is worker.c over sidecar.hpp.
//
//     sidecar --shm /dev/shm/obs0 ... -- ./worker_cpp      (the path comes in SIDECAR_SHM)
//     ./worker_cpp /dev/shm/obs0 [/dev/shm/obs1 ...]       (one model for several sidecars)

#include <cstdlib>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "cartpole.h"
#include "sidecar.hpp"

namespace {

void answer(sidecar::Worker &worker, sidecar::Observation observation) {
    const auto payload = observation.payload();
    if (payload.empty()) {
        // It asks for the action that does nothing.
        return worker.answer(std::move(observation), {});
    }
    const int push = cartpole(payload.data, payload.size);
    if (push < 0) {
        return worker.failed(std::move(observation), "too short for a cart-pole observation");
    }
    // In place; a copy is as short: worker.answer(std::move(observation), {bytes, length}).
    auto action = worker.reserve(observation, 1);
    *action.data() = static_cast<std::uint8_t>(push);
    worker.answer(std::move(observation), std::move(action), 1);
}

int serve(const std::vector<std::string_view> &regions) {
    sidecar::Worker worker{regions};
    unsigned long answers = 0;
    while (auto event = worker.next()) {
        switch (event->kind()) {
        case sidecar_WORKER_EVENT_WARMUP:
            // Here the model is loaded.
            worker.ready(event->member());
            break;
        case sidecar_WORKER_EVENT_SESSION_OPENED:
            std::cout << "worker: session " << event->session() << (event->resumed() ? ", resumed" : "") << std::endl;
            break;
        case sidecar_WORKER_EVENT_OBSERVATION:
            answer(worker, event->take_observation());
            ++answers;
            break;
        default: // Nothing to be done about it, or newer than this program.
            break;
        }
    }
    std::cout << "worker: " << answers << " answers" << std::endl;
    return EXIT_SUCCESS;
}

} // namespace

int main(int count, char **arguments) {
    std::vector<std::string_view> regions(arguments + 1, arguments + count);
    if (const char *region = std::getenv("SIDECAR_SHM"); regions.empty() && region != nullptr) {
        regions.emplace_back(region);
    }
    if (regions.empty()) {
        std::cerr << "usage: worker_cpp REGION... (or SIDECAR_SHM=REGION worker_cpp)\n";
        return EXIT_FAILURE;
    }
    try {
        return serve(regions);
    } catch (const sidecar::Error &error) {
        std::cerr << "worker: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
