// Channel: one connection to a client as bytes, whatever carries it: TCP, a unix socket, TLS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace quire::server {

// Nothing here blocks. Threads: the loop's thread.
class Channel {
 public:
  enum class Read : std::uint8_t { kBytes, kNothing, kEnd, kBroken };

  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  // Closes it.
  virtual ~Channel() = default;

  // Calls once, later, when read() has something to say. Replaces an earlier call.
  virtual void when_readable(std::function<void()> call) = 0;
  // Reads what is there into `into`; sets `size` with kBytes.
  virtual Read read(std::span<char> into, std::size_t& size) = 0;
  // Writes what the system takes at once, perhaps nothing. Returns false when it is broken.
  virtual bool write(std::string_view bytes, std::size_t& size) = 0;
  // Calls once, later, when write() can take more. Replaces an earlier call.
  virtual void when_writable(std::function<void()> call) = 0;
  // Returns true when the client has closed its half, though bytes before that are still unread.
  [[nodiscard]] virtual bool client_is_gone() = 0;
  // Says to the client that nothing more comes.
  virtual void end_writing() = 0;
  // Ends it; no call comes any more.
  virtual void close() = 0;
};

}  // namespace quire::server
