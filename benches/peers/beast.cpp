// A client on Boost.Beast, synchronous: usage beast HOST PORT PATH AGENT.
//
// Only what a user of Beast would write: stream, handshake, read into a flat buffer, write.

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/websocket.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using tcp = boost::asio::ip::tcp;

namespace {

constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 7680;

// The reply that an observation asks for: see benches/src/reply.rs.
void reply_to(const unsigned char* message, std::size_t size, std::vector<unsigned char>& out) {
    const std::size_t head = 4 + ((std::size_t{message[0]} << 24) | (std::size_t{message[1]} << 16) |
                                  (std::size_t{message[2]} << 8) | std::size_t{message[3]});
    const std::size_t payload = size - head;
    const std::size_t length = payload == 87040 || payload == 786432 ? kLarge : kSmall;
    static const auto pattern = [] {
        std::array<unsigned char, kLarge> bytes{};
        for (std::size_t index = 0; index < bytes.size(); ++index) {
            bytes[index] = static_cast<unsigned char>(index * 7 + 3);
        }
        return bytes;
    }();
    out.resize(head + length);
    std::memcpy(out.data(), message, head);
    std::memcpy(out.data() + head, pattern.data(), length);
    if (payload >= 8) {
        std::memcpy(out.data() + head, message + size - 8, 8);
    } else {
        std::memset(out.data() + head, 0, 8);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::cerr << "usage: beast HOST PORT PATH AGENT\n";
        return 2;
    }
    try {
        boost::asio::io_context context;
        tcp::resolver resolver(context);
        websocket::stream<tcp::socket> stream(context);
        boost::asio::connect(beast::get_lowest_layer(stream), resolver.resolve(argv[1], argv[2]));
        beast::get_lowest_layer(stream).set_option(tcp::no_delay(true));
        stream.set_option(websocket::stream_base::decorator([](websocket::request_type& request) {
            request.set(http::field::authorization, "Bearer bench");
        }));
        stream.read_message_max(0);
        // One frame a reply, as everybody else sends it.
        stream.auto_fragment(false);
        stream.handshake(argv[1], std::string(argv[3]) + "?job=bench&agent=" + argv[4]);
        beast::flat_buffer buffer;
        std::vector<unsigned char> reply;
        for (;;) {
            buffer.clear();
            stream.read(buffer);
            const auto* bytes = static_cast<const unsigned char*>(buffer.data().data());
            if (stream.got_binary()) {
                reply_to(bytes, buffer.size(), reply);
                stream.binary(true);
                stream.write(boost::asio::buffer(reply));
                continue;
            }
            const std::string_view text(reinterpret_cast<const char*>(bytes), buffer.size());
            if (text.find("\"warmup\"") != std::string_view::npos) {
                stream.text(true);
                stream.write(boost::asio::buffer(std::string("{\"type\":\"ready\"}")));
            } else if (text.find("\"drain\"") != std::string_view::npos) {
                return 0;
            }
        }
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << '\n';
        return 1;
    }
}
