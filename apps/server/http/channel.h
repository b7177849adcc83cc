// Channel: the bytes of one connection to a client, over TCP, a unix socket or TLS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace quire::server {

// A connection's bytes. No call blocks. Threads: the loop's thread.
class Channel {
 public:
  enum class Read : std::uint8_t { kBytes, kNothing, kEnd, kBroken };

  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  // Closes the connection.
  virtual ~Channel() = default;

  // Calls `call` once, later, when read() has something to report. Replaces an earlier call.
  virtual void when_readable(std::function<void()> call) = 0;
  // Reads available bytes into `into`. Sets `size` with kBytes.
  virtual Read read(std::span<char> into, std::size_t& size) = 0;
  // Writes what the system takes at once, perhaps nothing. Returns false when the connection is
  // broken.
  virtual bool write(std::string_view bytes, std::size_t& size) = 0;
  // Calls `call` once, later, when write() can take more. Replaces an earlier call.
  virtual void when_writable(std::function<void()> call) = 0;
  // Returns true when the client has closed its half, even if earlier bytes are still unread.
  [[nodiscard]] virtual bool client_is_gone() = 0;
  // Tells the client that nothing more comes.
  virtual void end_writing() = 0;
  // Closes the connection; no call comes any more.
  virtual void close() = 0;
};

}  // namespace quire::server
