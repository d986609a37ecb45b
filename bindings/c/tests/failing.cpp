// A policy that fails in every way that serve() knows, now and then, and a game that goes on all the same: the sidecar
// answers in its place (--on-failure reply).
//
//     ./failing REGION...

#include <cstdlib>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../examples/cartpole.h"
#include "sidecar.hpp"

namespace {

std::vector<std::uint8_t> act(const sidecar::Observation &observation) {
    const auto seen = observation.view();
    switch (seen.sequence % 50) {
    case 10:
        throw std::runtime_error("no idea");
    case 20:
        throw 7;
    case 30:
        return std::vector<std::uint8_t>(1 << 17);
    default:
        return std::vector<std::uint8_t>(1, static_cast<std::uint8_t>(cartpole(seen.payload, seen.payload_len)));
    }
}

// Where it is said, the exception comes out, and the worker can be served on.
bool comes_out(sidecar::Worker &worker) {
    sidecar::Hooks hooks;
    hooks.on_error = sidecar::OnError::raise;
    hooks.on_open = [](const sidecar::Event &event) { throw std::string(event.session()); };
    try {
        sidecar::serve(worker, act, hooks);
    } catch (const std::string &session) {
        return !session.empty();
    }
    return false;
}

} // namespace

int main(int count, char **arguments) {
    sidecar::Worker worker{std::vector<std::string_view>(arguments + 1, arguments + count)};
    std::map<std::string, int> failures;
    sidecar::Hooks hooks;
    hooks.on_failure = [&failures](const std::string &text) { ++failures[text.substr(0, 20)]; };
    if (!comes_out(worker)) {
        std::cerr << "failing: what a hook throws did not come out\n";
        return EXIT_FAILURE;
    }
    sidecar::serve(worker, act, hooks);
    for (const auto &[text, times] : failures) {
        std::cout << "failing: " << times << " x " << text << std::endl;
    }
    const bool all = failures.count("no idea") == 1 && failures.count("an exception that is") == 1 &&
                     failures.count("ERR_ACTION_TOO_LARGE") == 1 && failures.size() == 3;
    return all ? EXIT_SUCCESS : EXIT_FAILURE;
}
