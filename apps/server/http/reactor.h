// Reactor: the loop of a process with its workers, and the listeners whose connections live on it.
// Asio and Beast stay in http.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "http/channel.h"
#include "loop.h"
#include "quire/result.h"

namespace quire::server {

// Certificate and key of a listener, in OpenSSL's form.
class TlsContext;

// Address of a listener. Plain data.
struct Listening {
  // "127.0.0.1:41233", "[::1]:80", or the path of a unix socket.
  std::string address;
  std::uint16_t port = 0;
  // True: only this machine reaches it.
  bool loopback = true;
};

// Takes a connection and the address of its client.
using AcceptCall = std::function<void(std::unique_ptr<Channel>, std::string remote)>;

// Owns the loop and its listeners.
// Threads: the thread that calls run(), but for stop() and the calls that Loop allows.
class Reactor {
 public:
  explicit Reactor(int workers);
  // Waits for the workers, then closes the listeners.
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  [[nodiscard]] Loop& loop();
  // Runs the loop until stop().
  void run();
  // Calls `call` with the text of each exception of a task, instead of ending the process. Any
  // thread calls it. Set it before run().
  void on_fault(std::function<void(const char* what)> call);
  // Ends run() soon. Any thread.
  void stop();

  // Reads a certificate chain and its key, both PEM. kIo, kInvalidArgument.
  [[nodiscard]] static Result<std::shared_ptr<TlsContext>> read_tls(const std::string& cert,
                                                                    const std::string& key);
  // Sets the certificate that TLS listeners show from now on.
  void set_tls(std::shared_ptr<TlsContext> tls, std::chrono::milliseconds handshake_timeout);

  // Opens a listener. Port 0 takes a free port. kIo.
  [[nodiscard]] Result<Listening> listen_tcp(const std::string& host, std::uint16_t port, bool tls,
                                             AcceptCall accept);
  // Opens a unix socket with the permissions `mode`. Its file is removed with the reactor. kIo.
  [[nodiscard]] Result<Listening> listen_unix(const std::string& path, unsigned mode,
                                              AcceptCall accept);
  // Closes the listeners, and removes the files of unix sockets. Not during run().
  void close_listeners();
  // Calls `call` with each signal of `signals` from now on.
  void on_signal(std::initializer_list<int> signals, std::function<void(int)> call);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
