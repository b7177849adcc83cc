// All of Asio and Beast: the loop, its workers, listeners, channels, and Beast's parser.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/asio_channels.h"
#include "http/asio_loop.h"
#include "http/beast_parser.h"
#include "http/head.h"
#include "http/parser.h"
#include "http/reactor.h"
#include "loop.h"
#include "message.h"
#include "quire/result.h"

namespace quire::server {
namespace {

using Protocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Protocol>;

// After a failure of accept() for want of descriptors.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr int kAcceptsInTurn = 64;
constexpr unsigned kUserTimeoutMs = 60'000;

// --- Listeners ---

std::string text_of(const Protocol::endpoint& endpoint) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (endpoint.protocol().family() == AF_INET) {
    sockaddr_in address = {};
    std::memcpy(&address, endpoint.data(), sizeof address);
    inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
    return std::string(text.data()) + ":" + std::to_string(ntohs(address.sin_port));
  }
  if (endpoint.protocol().family() == AF_INET6) {
    sockaddr_in6 address = {};
    std::memcpy(&address, endpoint.data(), sizeof address);
    inet_ntop(AF_INET6, &address.sin6_addr, text.data(), text.size());
    return "[" + std::string(text.data()) + "]:" + std::to_string(ntohs(address.sin6_port));
  }
  return "unix";
}

Error io_error(const std::string& what, const std::string& why) {
  return {.code = ErrorCode::kIo, .message = "cannot listen on " + what + ": " + why};
}

}  // namespace

class TlsContext {
 public:
  std::shared_ptr<asio::ssl::context> context;
};

// --- RequestParser ---

class RequestParser::Impl {
 public:
  FillingParser parser;
};

RequestParser::RequestParser(std::int64_t max_body) : impl_(std::make_unique<Impl>()) {
  impl_->parser.body_limit(static_cast<std::uint64_t>(max_body));
  impl_->parser.header_limit(std::uint32_t{64} << 10);  // HeadScanner has smaller ones
  impl_->parser.eager(false);
}
RequestParser::~RequestParser() = default;

std::optional<Refusal> RequestParser::take_head(std::string_view head) {
  error_code error;
  impl_->parser.eager(false);
  while (!head.empty() && !impl_->parser.is_header_done()) {
    const std::size_t taken = impl_->parser.put(asio::buffer(head.data(), head.size()), error);
    head.remove_prefix(taken);
    if (error || taken == 0) {
      break;
    }
  }
  // Too long a body is refused by its length, with both numbers.
  if (error == kTooLarge) {
    return {};
  }
  if (error || !impl_->parser.is_header_done()) {
    return error ? refusal_of(error) : Refusal{.message = "not HTTP"};
  }
  return {};
}

std::optional<Refusal> RequestParser::take_body(std::string_view bytes, std::size_t& taken) {
  taken = 0;
  while (taken < bytes.size() && !impl_->parser.is_done()) {
    error_code error;
    const std::string_view rest = bytes.substr(taken);
    const std::size_t size = impl_->parser.put(asio::buffer(rest.data(), rest.size()), error);
    taken += size;
    if (error == beast::http::error::need_more || (!error && size == 0)) {
      break;
    }
    if (error) {
      return refusal_of(error);
    }
  }
  return {};
}

bool RequestParser::done() const { return impl_->parser.is_done(); }
Request& RequestParser::request() { return impl_->parser.request; }
const std::string& RequestParser::target() const { return impl_->parser.target; }
bool RequestParser::http11() const { return impl_->parser.http11; }

std::string_view reason_of(int status) {
  if (status == 529) {
    return "Overloaded";
  }
  const beast::string_view text =
      beast::http::obsolete_reason(beast::http::int_to_status(static_cast<unsigned>(status)));
  return {text.data(), text.size()};
}

// --- Reactor ---

class Reactor::Impl {
 public:
  explicit Impl(int workers) : loop(context, workers) {}

  struct Listener {
    Acceptor acceptor;
    AcceptCall accept;
    bool is_tcp = true;
    bool tls = false;
    std::string file;  // path of a unix socket
  };

  Status open(Listener& listener, const Protocol::endpoint& endpoint, const std::string& name) {
    error_code error;
    Acceptor& acceptor = listener.acceptor;
    acceptor.open(endpoint.protocol(), error);
    if (!error && listener.is_tcp) {
      acceptor.set_option(asio::socket_base::reuse_address(true), error);
    }
    if (!error) {
      acceptor.bind(endpoint, error);
    }
    return error ? Status(io_error(name, error.message())) : Status();
  }
  Status begin(Listener& listener, const std::string& name) {
    error_code error;
    listener.acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) {
      listener.acceptor.non_blocking(true, error);
    }
    if (error) {
      return io_error(name, error.message());
    }
    wait(listener);
    return {};
  }
  void wait(Listener& listener) {
    listener.acceptor.async_wait(Acceptor::wait_read, [this, &listener](error_code error) {
      if (error != asio::error::operation_aborted) {
        loop.watch.run([&] { accept_some(listener); });
      }
    });
  }
  void accept_some(Listener& listener) {
    for (int i = 0; i < kAcceptsInTurn; ++i) {
      Protocol::endpoint peer;
      Socket socket(context);
      error_code error;
      listener.acceptor.accept(socket, peer, error);
      if (error == asio::error::would_block) {
        break;
      }
      if (error == asio::error::no_descriptors || error == asio::error::no_memory ||
          error.value() == ENFILE) {
        loop.after(kAcceptPause, [this, &listener] { wait(listener); });
        return;
      }
      if (!error) {
        take(listener, std::move(socket), text_of(peer));
      }
    }
    wait(listener);
  }
  void take(Listener& listener, Socket socket, std::string remote) {
    error_code ignored;
    socket.non_blocking(true, ignored);
    if (listener.is_tcp) {
      const int one = 1;
      const unsigned timeout = kUserTimeoutMs;
      const int descriptor = socket.native_handle();
      setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
      setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    }
    if (!listener.tls) {
      listener.accept(std::make_unique<PlainChannel>(std::move(socket), loop.watch),
                      std::move(remote));
      return;
    }
    auto state = std::make_shared<TlsState>(std::move(socket), tls->context, loop.watch);
    state->handshake(handshake_timeout);
    listener.accept(std::make_unique<TlsChannel>(std::move(state)), std::move(remote));
  }

  asio::io_context context{1};
  AsioLoop loop;
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::unique_ptr<asio::signal_set>> signals;
  std::shared_ptr<TlsContext> tls;
  std::chrono::milliseconds handshake_timeout{10'000};
};

Reactor::Reactor(int workers) : impl_(std::make_unique<Impl>(workers)) {}

Reactor::~Reactor() {
  close_listeners();
  impl_->loop.join();
}

void Reactor::close_listeners() {
  for (const auto& listener : impl_->listeners) {
    error_code ignored;
    listener->acceptor.close(ignored);
    if (!listener->file.empty()) {
      ::unlink(listener->file.c_str());
      listener->file.clear();
    }
  }
}

Loop& Reactor::loop() { return impl_->loop; }

void Reactor::run() {
  const auto guard = asio::make_work_guard(impl_->context);
  while (!impl_->context.stopped()) {
    impl_->loop.run_guarded([this] { impl_->context.run(); });
  }
}

void Reactor::on_fault(std::function<void(const char* what)> call) {
  impl_->loop.on_fault = std::move(call);
}

void Reactor::stop() { impl_->context.stop(); }

Result<std::shared_ptr<TlsContext>> Reactor::read_tls(const std::string& cert,
                                                      const std::string& key) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  const auto select = [](SSL*, const unsigned char** out, unsigned char* size,
                         const unsigned char* in, unsigned in_size, void*) {
    static constexpr unsigned char kOurs[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
    const bool agreed = SSL_select_next_proto(const_cast<unsigned char**>(out), size, kOurs,
                                              sizeof kOurs, in, in_size) == OPENSSL_NPN_NEGOTIATED;
    return agreed ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
  };
  SSL_CTX_set_alpn_select_cb(context->native_handle(), select, nullptr);
  context->use_certificate_chain_file(cert, error);
  if (error) {
    return {ErrorCode::kIo, "--tls-cert " + cert + ": " + error.message()};
  }
  context->use_private_key_file(key, asio::ssl::context::pem, error);
  if (error) {
    return {ErrorCode::kIo, "--tls-key " + key + ": " + error.message()};
  }
  auto tls = std::make_shared<TlsContext>();
  tls->context = std::move(context);
  return tls;
}

void Reactor::set_tls(std::shared_ptr<TlsContext> tls,
                      std::chrono::milliseconds handshake_timeout) {
  impl_->tls = std::move(tls);
  impl_->handshake_timeout = handshake_timeout;
}

Result<Listening> Reactor::listen_tcp(const std::string& host, std::uint16_t port, bool tls,
                                      AcceptCall accept) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string bare = bracketed ? host.substr(1, host.size() - 2) : host;
  const std::string name = host + ":" + std::to_string(port);
  error_code error;
  asio::ip::tcp::resolver resolver(impl_->context);
  const auto found =
      resolver.resolve(bare, std::to_string(port), asio::ip::tcp::resolver::passive, error);
  if (error || found.empty()) {
    return io_error(name, error.message());
  }
  const auto v4 = std::ranges::find_if(
      found, [](const auto& entry) { return entry.endpoint().address().is_v4(); });
  const asio::ip::tcp::endpoint chosen = (v4 == found.end() ? found.begin() : v4)->endpoint();
  auto listener = std::make_unique<Impl::Listener>(Impl::Listener{
      .acceptor = Acceptor(impl_->context), .accept = std::move(accept), .tls = tls});
  QUIRE_TRY_STATUS(
      impl_->open(*listener, Protocol::endpoint(chosen.data(), chosen.size(), IPPROTO_TCP), name));
  QUIRE_TRY_STATUS(impl_->begin(*listener, name));
  const std::string address = text_of(listener->acceptor.local_endpoint(error));
  impl_->listeners.push_back(std::move(listener));
  return Listening{
      .address = address,
      .port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))),
      .loopback = chosen.address().is_loopback()};
}

Result<Listening> Reactor::listen_unix(const std::string& path, unsigned mode, AcceptCall accept) {
  const std::string name = "unix:" + path;
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return io_error(name, "the path is empty or too long");
  }
  const asio::local::stream_protocol::endpoint endpoint(path);
  error_code error;
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
    asio::local::stream_protocol::socket probe(impl_->context);
    probe.connect(endpoint, error);
    if (!error) {
      return io_error(name, "another process listens there");
    }
    ::unlink(path.c_str());  // a process that was killed may have left it
  }
  auto listener = std::make_unique<Impl::Listener>(Impl::Listener{
      .acceptor = Acceptor(impl_->context), .accept = std::move(accept), .is_tcp = false});
  const mode_t mask = ::umask(0177);
  const Status opened =
      impl_->open(*listener, Protocol::endpoint(endpoint.data(), endpoint.size(), 0), name);
  ::umask(mask);
  QUIRE_TRY_STATUS(opened);
  listener->file = path;
  ::chmod(path.c_str(), mode);
  QUIRE_TRY_STATUS(impl_->begin(*listener, name));
  impl_->listeners.push_back(std::move(listener));
  return Listening{.address = path};
}

void Reactor::on_signal(std::initializer_list<int> signals, std::function<void(int)> call) {
  auto set = std::make_unique<asio::signal_set>(impl_->context);
  for (const int signal : signals) {
    set->add(signal);
  }
  asio::signal_set& waits = *set;
  impl_->signals.push_back(std::move(set));
  auto again = std::make_shared<std::function<void()>>();
  *again = [&waits, call = std::move(call), weak = std::weak_ptr(again)] {
    waits.async_wait([call, keep = weak.lock()](error_code error, int signal) {
      if (!error) {
        (*keep)();
        call(signal);
      }
    });
  };
  (*again)();
}

}  // namespace quire::server
