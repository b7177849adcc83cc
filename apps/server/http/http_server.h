// HttpServer: the connections of a process, from all its listeners.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "config.h"
#include "http/channel.h"
#include "http/connection.h"
#include "http/gate.h"
#include "loop.h"
#include "message.h"
#include "service.h"

namespace quire::server {

// Owns the connections. Threads: the loop's thread.
class HttpServer {
 public:
  // Makes a server without connections. `loop` outlives it. Calls `done` for each request that has
  // ended, and `fault` with the text of an exception of a handler.
  HttpServer(
      Loop& loop, std::shared_ptr<const Config> config,
      std::function<void(const AccessRecord&)> done,
      std::function<void(const char* what)> fault = [](const char*) {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Takes a connection; closes it if there are too many.
  void accept(const ListenerFacts& listener, const Handler& handler,
              std::unique_ptr<Channel> channel, std::string remote);
  // Takes a configuration for the requests that begin from now on.
  void reload(std::shared_ptr<const Config> config);
  // Closes each connection after its answer from now on, and idle ones once no request runs. Calls
  // `rested` when no connection is answering any more.
  void close_when_rested(std::function<void()> rested);
  // Closes every connection. Tells answers under way that the connection is gone.
  void shut_all(Gone why);
  [[nodiscard]] std::size_t answering() const;
  [[nodiscard]] TransportStats stats() const { return host_.stats; }

 private:
  void look_whether_rested();

  ConnectionHost host_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::function<void()> rested_;
};

}  // namespace quire::server
