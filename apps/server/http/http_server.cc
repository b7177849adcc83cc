#include "http/http_server.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "http/channel.h"
#include "http/connection.h"
#include "http/gate.h"
#include "loop.h"
#include "message.h"
#include "service.h"

namespace quire::server {

HttpServer::HttpServer(Loop& loop, std::shared_ptr<const Config> config,
                       std::function<void(const AccessRecord&)> done,
                       std::function<void(const char* what)> fault)
    : host_{.loop = loop,
            .config = std::move(config),
            .done = {},
            .fault = std::move(fault),
            .closed = [this](Connection& connection) { connections_.erase(&connection); }} {
  host_.done = [this, done = std::move(done)](const AccessRecord& record) {
    done(record);
    if (rested_) {
      host_.loop.post([this] { look_whether_rested(); });
    }
  };
}

HttpServer::~HttpServer() { shut_all(Gone::kShutdown); }

void HttpServer::accept(const ListenerFacts& listener, const Handler& handler,
                        std::unique_ptr<Channel> channel, std::string remote) {
  if (connections_.size() >= static_cast<std::size_t>(host_.config->limits.max_connections)) {
    ++host_.stats.refused;
    channel->close();
    return;
  }
  const auto connection =
      std::make_shared<Connection>(host_, listener, handler, std::move(channel), std::move(remote));
  connections_.emplace(connection.get(), connection);
  connection->start();
}

void HttpServer::reload(std::shared_ptr<const Config> config) { host_.config = std::move(config); }

std::size_t HttpServer::answering() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      connections_, [](const auto& entry) { return entry.second->is_busy(); }));
}

void HttpServer::close_when_rested(std::function<void()> rested) {
  rested_ = std::move(rested);
  host_.loop.post([this] { look_whether_rested(); });
}

void HttpServer::look_whether_rested() {
  if (!rested_ || answering() > 0) {
    return;
  }
  host_.closing = true;
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections_.size());
  for (const auto& [pointer, connection] : connections_) {
    all.push_back(connection);
  }
  for (const auto& connection : all) {
    connection->close_if_idle();
  }
  std::exchange(rested_, {})();
}

void HttpServer::shut_all(Gone why) {
  const auto all = connections_;
  // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): all end, in whatever order
  for (const auto& [pointer, connection] : all) {
    connection->shut(why);
  }
}

}  // namespace quire::server
