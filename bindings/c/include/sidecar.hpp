// The worker's side of sidecar for C++17, over sidecar.h: handles that close themselves, errors as exceptions.
//
//     sidecar::Worker worker{"/dev/shm/obs0"};
//     sidecar::serve(worker, [](const sidecar::Observation &observation) { return infer(observation.payload()); });
//
// or, with the loop in your own hands:
//
//     while (auto event = worker.next()) {
//         switch (event->kind()) {
//         case sidecar_WORKER_EVENT_WARMUP: load(); worker.ready(event->member()); break;
//         case sidecar_WORKER_EVENT_OBSERVATION: {
//             auto observation = event->take_observation();
//             worker.answer(std::move(observation), infer(observation.payload()));
//             break;
//         }
//         default: break;
//         }
//     }
//
// Everything is inline; the rules of sidecar.h hold. A moved-from handle is empty.

#ifndef SIDECAR_HPP
#define SIDECAR_HPP

#include "sidecar.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace sidecar {

/// A status that is an error, in words.
class Error : public std::exception {
public:
    Error(std::int32_t status, std::string text) : status_(status), text_(std::move(text)) {}
    /// One of sidecar_ERR_...
    std::int32_t status() const noexcept { return status_; }
    const char *what() const noexcept override { return text_.c_str(); }

private:
    std::int32_t status_;
    std::string text_;
};

namespace detail {

/// The status if it is an outcome; throws if it is an error.
inline std::int32_t check(std::int32_t status, const sidecar_failure *why = nullptr) {
    if (status >= 0) {
        return status;
    }
    std::string text = sidecar_status_name(status);
    if (why != nullptr && why->status == status) {
        text.append(": ").append(why->text, why->text_len);
    }
    throw Error(status, std::move(text));
}

template <typename T> T sized() noexcept {
    T value{};
    value.struct_size = sizeof(T);
    return value;
}

template <typename T, std::int32_t (*release)(T *)> struct Release {
    void operator()(T *handle) const noexcept { release(handle); }
};

template <typename T, std::int32_t (*release)(T *)> using Handle = std::unique_ptr<T, Release<T, release>>;

} // namespace detail

/// Bytes that are borrowed: whoever gave them keeps them.
struct Bytes {
    const std::uint8_t *data = nullptr;
    std::size_t size = 0;

    constexpr Bytes() noexcept = default;
    constexpr Bytes(const std::uint8_t *bytes, std::size_t length) noexcept : data(bytes), size(length) {}
    /// Of anything that lies in one piece and can be copied bytewise: std::vector<float>, std::array, std::string.
    template <typename Piece, typename Item = std::remove_pointer_t<decltype(std::declval<const Piece &>().data())>,
              typename = std::enable_if_t<!std::is_same_v<Piece, Bytes> && std::is_trivially_copyable_v<Item>>>
    Bytes(const Piece &piece) noexcept
        : data(reinterpret_cast<const std::uint8_t *>(piece.data())), size(piece.size() * sizeof(Item)) {}

    const std::uint8_t *begin() const noexcept { return data; }
    const std::uint8_t *end() const noexcept { return data + size; }
    bool empty() const noexcept { return size == 0; }
};

/// What is to be answered. Destroying it gives its slot back unanswered: it is left to a successor of this worker.
class Observation {
public:
    /// Takes the handle over.
    explicit Observation(sidecar_observation *handle) : handle_(handle) {}

    sidecar_observation_view view() const {
        auto view = detail::sized<sidecar_observation_view>();
        detail::check(sidecar_observation_get_view(handle_.get(), &view));
        return view;
    }
    /// Borrowed: as long as this lives and is not answered.
    Bytes payload() const {
        const auto seen = view();
        return {seen.payload, seen.payload_len};
    }
    /// False: its session is over, and an action for it would be dropped.
    bool is_wanted() const { return detail::check(sidecar_observation_is_wanted(handle_.get())) == sidecar_OK; }
    /// Starts the copy of the payload to `length` bytes of device memory on a stream, and does not wait: the slot is given
    /// back when it is over. See sidecar_observation_copy_to_device; the worker needs sidecar_WORKER_PIN.
    void copy_to_device(std::uint64_t device_address, std::size_t length, void *stream = nullptr) {
        detail::check(sidecar_observation_copy_to_device(handle_.get(), device_address, length, stream));
    }
    /// The GPU uses the slot in what was put on this stream so far.
    void used_by_device(void *stream = nullptr) {
        detail::check(sidecar_observation_used_by_device(handle_.get(), stream));
    }
    /// Where a kernel sees the payload; none if the slots are not page-locked. Borrowed, as payload() is.
    std::optional<std::uint64_t> device_address() const {
        std::uint64_t address = 0;
        const auto status = detail::check(sidecar_observation_get_device_address(handle_.get(), &address));
        return status == sidecar_OK ? std::optional<std::uint64_t>(address) : std::nullopt;
    }
    /// Where the payload lies on the GPU already (--device-copy), behind hold_back(); none if it does not. Borrowed, as
    /// payload() is, and only as long as the sidecar lives.
    std::optional<std::uint64_t> arrival() const {
        std::uint64_t address = 0;
        const auto status = detail::check(sidecar_observation_get_arrival(handle_.get(), &address));
        return status == sidecar_OK ? std::optional<std::uint64_t>(address) : std::nullopt;
    }
    /// Waits until it has arrived, for what is put on this stream, or any other, from now on.
    void hold_back(void *stream = nullptr) const {
        detail::check(sidecar_observation_hold_back(handle_.get(), stream));
    }
    /// Without waiting, on any thread. False: no room; it is still here.
    bool try_answer(Bytes action) {
        const auto status = sidecar_observation_try_answer(handle_.get(), action.data, action.size);
        if (detail::check(status) == sidecar_OK) {
            handle_.release();
            return true;
        }
        return false;
    }
    /// The same with an action of `length` bytes that lies on the GPU: waits for the stream, but not for room.
    bool try_answer_from_device(std::uint64_t device_address, std::size_t length, void *stream = nullptr) {
        const auto status =
            sidecar_observation_try_answer_from_device(handle_.get(), device_address, length, stream);
        if (detail::check(status) == sidecar_OK) {
            handle_.release();
            return true;
        }
        return false;
    }
    /// A worker before this one had it and did not answer.
    bool redelivered() const { return (view().flags & sidecar_OBSERVATION_REDELIVERED) != 0; }
    /// False after it was answered or moved from.
    explicit operator bool() const noexcept { return handle_ != nullptr; }

private:
    friend class Worker;
    detail::Handle<sidecar_observation, sidecar_observation_release> handle_;
};

/// An action slot that is written in place. Destroying it gives the slot back unused.
class Reservation {
public:
    /// Takes the handle over.
    explicit Reservation(sidecar_reservation *handle) : handle_(handle) {
        detail::check(sidecar_reservation_get_bytes(handle, &data_, &size_));
    }
    std::uint8_t *data() noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

private:
    friend class Worker;
    detail::Handle<sidecar_reservation, sidecar_reservation_release> handle_;
    std::uint8_t *data_ = nullptr;
    std::size_t size_ = 0;
};

/// What a worker is told.
class Event {
public:
    /// Takes the observation over.
    explicit Event(const sidecar_worker_event &event) : event_(event), observation_(event.observation) {}

    /// One of sidecar_WORKER_EVENT_...; ignore those that you do not know.
    std::uint32_t kind() const noexcept { return event_.kind; }
    /// Number of the region, in the order in which they were given.
    std::uint32_t member() const noexcept { return event_.member; }
    std::uint32_t epoch() const noexcept { return event_.epoch; }
    bool resumed() const noexcept { return (event_.flags & sidecar_FLAG_RESUMED) != 0; }
    std::string_view session() const noexcept { return {event_.session, event_.session_len}; }
    /// Empty but for sidecar_WORKER_EVENT_OBSERVATION, and the second time.
    Observation take_observation() noexcept { return std::move(observation_); }

private:
    sidecar_worker_event event_;
    Observation observation_;
};

/// Attached to one or several sidecars.
class Worker {
public:
    using Options = sidecar_worker_options;

    static Options options() noexcept { return detail::sized<Options>(); }

    explicit Worker(std::string_view path, const Options &how = options())
        : Worker(std::vector<std::string_view>{path}, how) {}

    explicit Worker(const std::vector<std::string_view> &paths, const Options &how = options()) {
        std::vector<const char *> texts;
        std::vector<std::size_t> lengths;
        for (const auto path : paths) {
            texts.push_back(path.data());
            lengths.push_back(path.size());
        }
        auto why = detail::sized<sidecar_failure>();
        sidecar_worker *handle = nullptr;
        const auto status =
            sidecar_worker_attach_many(texts.data(), lengths.data(), texts.size(), &how, &why, &handle);
        detail::check(status, &why);
        handle_.reset(handle);
    }

    /// The next event; none when every sidecar has ended in order. A signal does not end the wait.
    std::optional<Event> next() {
        for (;;) {
            auto event = next(std::nullopt);
            if (event || ended_) {
                return event;
            }
        }
    }

    /// The next event; none when nothing came in time, a signal came, or has_ended().
    std::optional<Event> next(std::chrono::nanoseconds timeout) {
        return next(std::optional<std::chrono::nanoseconds>(timeout));
    }

    /// At least one event, waited for, and what else is there already, `most` in all, in order of arrival; empty when
    /// every sidecar has ended in order. For policies that infer in batches: take_observation() from each.
    std::vector<Event> next_batch(std::size_t most) {
        std::vector<Event> events;
        auto event = most > 0 ? next() : std::nullopt;
        while (event) {
            events.push_back(std::move(*event));
            event = events.size() < most ? next(std::chrono::nanoseconds::zero()) : std::nullopt;
        }
        return events;
    }

    /// Every sidecar has ended in order.
    bool has_ended() const noexcept { return ended_; }

    void ready(std::uint32_t member = 0) { check(sidecar_worker_ready(handle_.get(), member)); }

    void warmup_failed(std::string_view message, std::uint32_t member = 0) {
        check(sidecar_worker_warmup_failed(handle_.get(), member, message.data(), message.size()));
    }

    /// If it throws, the observation is still there.
    void answer(Observation &&observation, Bytes action) {
        check(sidecar_worker_answer(handle_.get(), observation.handle_.get(), action.data, action.size));
        observation.handle_.release();
    }

    void answer(Observation &&observation, Reservation &&reservation, std::size_t length) {
        check(sidecar_worker_answer_reserved(handle_.get(), observation.handle_.get(),
                                             reservation.handle_.get(), length));
        observation.handle_.release();
        reservation.handle_.release();
    }

    /// With `length` bytes that lie on the GPU: they are copied back behind all that is on the stream, and sent.
    void answer_from_device(Observation &&observation, std::uint64_t device_address, std::size_t length,
                            void *stream = nullptr) {
        check(sidecar_worker_answer_from_device(handle_.get(), observation.handle_.get(), device_address, length,
                                                stream));
        observation.handle_.release();
    }

    Reservation reserve(const Observation &observation, std::size_t length) {
        sidecar_reservation *handle = nullptr;
        check(sidecar_worker_reserve(handle_.get(), observation.handle_.get(), length, &handle));
        return Reservation(handle);
    }

    void failed(Observation &&observation, std::string_view message) {
        check(sidecar_worker_failed(handle_.get(), observation.handle_.get(), message.data(), message.size()));
        observation.handle_.release();
    }

    sidecar_worker_info info(std::uint32_t member = 0) {
        auto info = detail::sized<sidecar_worker_info>();
        check(sidecar_worker_get_info(handle_.get(), member, &info));
        return info;
    }

    /// Why observations are not found on the GPU, though the sidecar copies them there; none: they are, or it copies none.
    std::optional<std::string> arrival_failure(std::uint32_t member = 0) {
        auto why = detail::sized<sidecar_failure>();
        if (check(sidecar_worker_get_arrival_failure(handle_.get(), member, &why)) != sidecar_OK) {
            return std::nullopt;
        }
        return std::string(why.text, why.text_len);
    }

    /// Why the slots are not page-locked, though sidecar_WORKER_PIN asked for it; none: they are, or nobody asked.
    std::optional<std::string> pin_failure(std::uint32_t member = 0) {
        auto why = detail::sized<sidecar_failure>();
        if (check(sidecar_worker_get_pin_failure(handle_.get(), member, &why)) != sidecar_OK) {
            return std::nullopt;
        }
        return std::string(why.text, why.text_len);
    }

    /// For poll loops; see sidecar_worker_fd.
    int fd() {
        std::int32_t fd = -1;
        check(sidecar_worker_fd(handle_.get(), &fd));
        return fd;
    }

private:
    std::optional<Event> next(std::optional<std::chrono::nanoseconds> timeout) {
        auto event = detail::sized<sidecar_worker_event>();
        const std::int64_t nanos = timeout ? (timeout->count() > 0 ? timeout->count() : 0) : sidecar_FOREVER;
        const auto status = check(sidecar_worker_next(handle_.get(), nanos, &event));
        ended_ = status == sidecar_ENDED;
        if (status != sidecar_OK) {
            return std::nullopt;
        }
        return std::optional<Event>(std::in_place, event);
    }

    std::int32_t check(std::int32_t status) {
        if (status >= 0) {
            return status;
        }
        auto why = detail::sized<sidecar_failure>();
        sidecar_worker_get_failure(handle_.get(), &why);
        return detail::check(status, &why);
    }

    detail::Handle<sidecar_worker, sidecar_worker_close> handle_;
    bool ended_ = false;
};

/// What becomes of an exception that a policy throws.
enum class OnError {
    /// The sidecar is told, and its --on-failure decides; serve() goes on.
    report,
    /// It comes out of serve(). The observation is left to a successor of this worker.
    raise,
};

/// What serve() calls besides the policy. All of it may be left out.
struct Hooks {
    /// Once, before the first session: load the model, run it once. An exception ends the sidecar, with its text.
    std::function<void()> on_warmup = {};
    /// A session opened, and its observations follow: event.session(), event.epoch(), event.member(), event.resumed().
    std::function<void(const Event &)> on_open = {};
    /// The session of event.epoch() at event.member() is over.
    std::function<void(const Event &)> on_close = {};
    /// Told of an exception that is reported, to log it.
    std::function<void(const std::string &)> on_failure = {};
    /// The action that does nothing, for an observation with an empty payload.
    std::vector<std::uint8_t> noop = {};
    OnError on_error = OnError::report;
};

namespace detail {

/// The text of the exception that is being handled.
inline std::string current_text() {
    try {
        throw;
    } catch (const std::exception &error) {
        return error.what();
    } catch (...) {
        return "an exception that is no std::exception";
    }
}

template <typename Act>
void answer(Worker &worker, Observation observation, Act &act, const Hooks &hooks) {
    if (observation.payload().empty()) {
        return worker.answer(std::move(observation), hooks.noop);
    }
    std::string text;
    try {
        const auto action = act(std::as_const(observation));
        return worker.answer(std::move(observation), action);
    } catch (...) {
        if (hooks.on_error == OnError::raise) {
            throw;
        }
        text = current_text();
    }
    if (hooks.on_failure) {
        hooks.on_failure(text);
    }
    worker.failed(std::move(observation), text);
}

inline void warm_up(Worker &worker, const Event &event, const Hooks &hooks, bool &warm) {
    try {
        if (!warm && hooks.on_warmup) {
            hooks.on_warmup();
        }
    } catch (...) {
        worker.warmup_failed(current_text(), event.member());
        throw;
    }
    warm = true;
    worker.ready(event.member());
}

} // namespace detail

/// Answers each observation with what `act(const Observation &)` returns for it (whatever Bytes can be made of), until
/// every sidecar has ended in order. Throws what the worker's own calls throw.
template <typename Act> void serve(Worker &worker, Act &&act, const Hooks &hooks = {}) {
    bool warm = false;
    while (auto event = worker.next()) {
        switch (event->kind()) {
        case sidecar_WORKER_EVENT_WARMUP:
            detail::warm_up(worker, *event, hooks, warm);
            break;
        case sidecar_WORKER_EVENT_SESSION_OPENED:
            if (hooks.on_open) {
                hooks.on_open(*event);
            }
            break;
        case sidecar_WORKER_EVENT_SESSION_CLOSED:
            if (hooks.on_close) {
                hooks.on_close(*event);
            }
            break;
        case sidecar_WORKER_EVENT_OBSERVATION:
            detail::answer(worker, event->take_observation(), act, hooks);
            break;
        default: // Nothing to be done about it.
            break;
        }
    }
}

} // namespace sidecar

#endif // SIDECAR_HPP
