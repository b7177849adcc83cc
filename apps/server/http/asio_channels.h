// PlainChannel and TlsChannel: channels over sockets. Part of http.cc, which alone includes it.
#pragma once

#include <poll.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/channel.h"
#include "http/turn_watch.h"

namespace quire::server {

namespace asio = boost::asio;
using boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;

// Bytes that go into TLS at a time.
inline constexpr std::size_t kTlsBytes = std::size_t{16} << 10;
// Time for the last bytes of a closed connection to go out.
inline constexpr std::chrono::milliseconds kTlsLastWrite{2'000};

inline bool has_hung_up(int descriptor) {
  pollfd asked = {.fd = descriptor, .events = POLLRDHUP, .revents = 0};
  return ::poll(&asked, 1, 0) == 1 && (asked.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

class PlainChannel final : public Channel {
 public:
  PlainChannel(Socket socket, TurnWatch& watch) : socket_(std::move(socket)), watch_(watch) {}

  void when_readable(std::function<void()> call) override {
    socket_.async_wait(Socket::wait_read,
                       [&watch = watch_, call = std::move(call)](error_code error) {
                         if (error != asio::error::operation_aborted) {
                           watch.run(call);
                         }
                       });
  }
  Read read(std::span<char> into, std::size_t& size) override {
    error_code error;
    size = socket_.read_some(asio::buffer(into.data(), into.size()), error);
    if (error == asio::error::would_block || error == asio::error::interrupted) {
      return Read::kNothing;
    }
    if (error) {
      return error == asio::error::eof ? Read::kEnd : Read::kBroken;
    }
    return Read::kBytes;
  }
  bool write(std::string_view bytes, std::size_t& size) override {
    error_code error;
    size = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    return !error || error == asio::error::would_block || error == asio::error::interrupted;
  }
  void when_writable(std::function<void()> call) override {
    socket_.async_wait(Socket::wait_write,
                       [&watch = watch_, call = std::move(call)](error_code error) {
                         if (error != asio::error::operation_aborted) {
                           watch.run(call);
                         }
                       });
  }
  bool client_is_gone() override { return has_hung_up(socket_.native_handle()); }
  void end_writing() override {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
  TurnWatch& watch_;
};

// State of a TLS channel. Operations of TLS go on after the channel has gone, so they own what they
// use.
class TlsState : public std::enable_shared_from_this<TlsState> {
 public:
  TlsState(Socket socket, const std::shared_ptr<asio::ssl::context>& context, TurnWatch& watch)
      : context_(context),
        stream_(std::move(socket), *context),
        timer_(stream_.get_executor()),
        watch_(watch) {}

  void handshake(std::chrono::milliseconds timeout) {
    timer_.expires_after(timeout);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) {
        self->give_up();
      }
    });
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [self = shared_from_this()](error_code error) {
                              self->timer_.cancel();
                              self->shaken_ = true;
                              error ? self->give_up() : self->start_read();
                            });
  }
  void when_readable(std::function<void()> call) {
    readable_ = std::move(call);
    if (read_size_ > 0 || over_) {
      tell_readable();
    } else if (shaken_) {
      start_read();
    }
  }
  Channel::Read read(std::span<char> into, std::size_t& size) {
    if (read_size_ == 0) {
      return !over_   ? Channel::Read::kNothing
             : clean_ ? Channel::Read::kEnd
                      : Channel::Read::kBroken;
    }
    size = std::min(into.size(), read_size_);
    std::memcpy(into.data(), read_.data() + read_at_, size);
    read_at_ += size;
    read_size_ -= size;
    return Channel::Read::kBytes;
  }
  bool write(std::string_view bytes, std::size_t& size) {
    size = 0;
    if (write_broken_ || (over_ && !clean_)) {
      return false;
    }
    if (writing_ || !shaken_) {
      return true;
    }
    size = std::min(bytes.size(), kTlsBytes);
    write_.assign(bytes.data(), size);
    writing_ = true;
    asio::async_write(stream_, asio::buffer(write_),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        self->writing_ = false;
                        self->write_broken_ = static_cast<bool>(error);
                        if (self->closing_) {
                          self->timer_.cancel();
                        } else if (self->ending_) {
                          self->shut_down();
                        }
                        if (const auto call = std::exchange(self->writable_, {})) {
                          self->watch_.run(call);
                        }
                      });
    return true;
  }
  void when_writable(std::function<void()> call) {
    writable_ = std::move(call);
    if (!writing_ && shaken_) {
      asio::post(stream_.get_executor(), [self = shared_from_this()] {
        if (const auto now = std::exchange(self->writable_, {})) {
          self->watch_.run(now);
        }
      });
    }
  }
  bool client_is_gone() { return over_ || has_hung_up(stream_.lowest_layer().native_handle()); }
  void end_writing() {
    ending_ = true;
    if (!writing_ && shaken_) {
      shut_down();
    }
  }
  void close() {
    readable_ = {};
    writable_ = {};
    over_ = true;
    closing_ = true;
    timer_.cancel();
    if (!writing_ || write_broken_) {
      close_socket();
      return;
    }
    // The bytes written last still go out.
    timer_.expires_after(kTlsLastWrite);
    timer_.async_wait([self = shared_from_this()](error_code) { self->close_socket(); });
  }

 private:
  void close_socket() {
    error_code ignored;
    stream_.lowest_layer().close(ignored);
  }
  void shut_down() {
    stream_.async_shutdown([self = shared_from_this()](error_code) { self->give_up(); });
  }
  void give_up() {
    over_ = true;
    tell_readable();
  }
  void tell_readable() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      if (const auto call = std::exchange(self->readable_, {})) {
        self->watch_.run(call);
      }
    });
  }
  void start_read() {
    if (reading_ || over_ || read_size_ > 0) {
      return;
    }
    reading_ = true;
    read_.resize(kTlsBytes / 4);
    stream_.async_read_some(asio::buffer(read_),
                            [self = shared_from_this()](error_code error, std::size_t size) {
                              self->reading_ = false;
                              self->read_at_ = 0;
                              self->read_size_ = size;
                              self->over_ = self->over_ || static_cast<bool>(error);
                              self->clean_ = error == asio::error::eof;
                              self->tell_readable();
                            });
  }

  std::shared_ptr<asio::ssl::context> context_;
  asio::ssl::stream<Socket> stream_;
  asio::steady_timer timer_;
  TurnWatch& watch_;
  std::vector<char> read_;
  std::size_t read_at_ = 0;
  std::size_t read_size_ = 0;
  std::string write_;
  std::function<void()> readable_, writable_;
  bool shaken_ = false, reading_ = false, writing_ = false, ending_ = false, closing_ = false;
  bool over_ = false, clean_ = false, write_broken_ = false;
};

class TlsChannel final : public Channel {
 public:
  explicit TlsChannel(std::shared_ptr<TlsState> state) : state_(std::move(state)) {}
  ~TlsChannel() override { state_->close(); }
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  void when_readable(std::function<void()> call) override {
    state_->when_readable(std::move(call));
  }
  Read read(std::span<char> into, std::size_t& size) override { return state_->read(into, size); }
  bool write(std::string_view bytes, std::size_t& size) override {
    return state_->write(bytes, size);
  }
  void when_writable(std::function<void()> call) override {
    state_->when_writable(std::move(call));
  }
  bool client_is_gone() override { return state_->client_is_gone(); }
  void end_writing() override { state_->end_writing(); }
  void close() override { state_->close(); }

 private:
  std::shared_ptr<TlsState> state_;
};

}  // namespace quire::server
