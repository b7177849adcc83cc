// FakeChannel: a connection whose client is the test.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "http/channel.h"
#include "loop.h"

namespace quire::server {

// State that both ends of a fake connection share.
struct FakeWire {
  std::string to_server;
  std::string to_client;
  // Bytes that the client still takes.
  std::size_t room = std::numeric_limits<std::size_t>::max();
  bool client_ended = false;
  bool client_reset = false;
  bool server_ended = false;
  bool closed = false;
  std::function<void()> readable, writable;
};

class FakeChannel final : public Channel {
 public:
  FakeChannel(Loop& loop, std::shared_ptr<FakeWire> wire) : loop_(loop), wire_(std::move(wire)) {}

  void when_readable(std::function<void()> call) override {
    wire_->readable = std::move(call);
    wake();
  }
  Read read(std::span<char> into, std::size_t& size) override {
    if (wire_->client_reset) {
      return Read::kBroken;
    }
    size = std::min(into.size(), wire_->to_server.size());
    if (size == 0) {
      return wire_->client_ended ? Read::kEnd : Read::kNothing;
    }
    std::memcpy(into.data(), wire_->to_server.data(), size);
    wire_->to_server.erase(0, size);
    return Read::kBytes;
  }
  bool write(std::string_view bytes, std::size_t& size) override {
    size = std::min(bytes.size(), wire_->room);
    wire_->room -= size;
    wire_->to_client += bytes.substr(0, size);
    return !wire_->client_reset;
  }
  void when_writable(std::function<void()> call) override {
    wire_->writable = std::move(call);
    wake();
  }
  bool client_is_gone() override { return wire_->client_ended || wire_->client_reset; }
  void end_writing() override { wire_->server_ended = true; }
  void close() override {
    wire_->closed = true;
    wire_->readable = {};
    wire_->writable = {};
  }
  // Calls what waits for what is there now.
  void wake() { wake(loop_, *wire_); }
  static void wake(Loop& loop, FakeWire& wire) {
    const bool readable = !wire.to_server.empty() || wire.client_ended || wire.client_reset;
    if (readable && wire.readable) {
      loop.post(std::exchange(wire.readable, {}));
    }
    if (wire.room > 0 && wire.writable) {
      loop.post(std::exchange(wire.writable, {}));
    }
  }

 private:
  Loop& loop_;
  std::shared_ptr<FakeWire> wire_;
};

}  // namespace quire::server
