// Service: the part of the API that the process and the transport need. service.cc makes one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "config.h"
#include "loop.h"
#include "message.h"
#include "quire/result.h"

namespace quire::server {

// A request that was answered, or whose client left. The transport makes one for each request, also
// for one that it refused itself. Plain data.
struct AccessRecord {
  std::string request_id;
  // "" if the caller was not identified.
  std::string tenant;
  std::string remote;
  std::string method;
  // Without the query.
  std::string path;
  // 499 if the client left before the answer ended.
  int status = 0;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
  double total_ms = 0;
  std::string user_agent;
  AnswerFacts facts;
};

// Connections of the transport. Plain data.
struct TransportStats {
  // Connections on which a request is being read or answered, and others.
  std::int64_t active = 0;
  std::int64_t idle = 0;
  // Connections that were closed at once, because there were too many.
  std::int64_t refused = 0;
};

// The API as the process sees it. Threads: the loop's thread, but for load().
class Service {
 public:
  Service() = default;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  virtual ~Service() = default;

  // Opens the model. Blocks; a thread of its own calls it, once. handle() answers 503 `loading`
  // until it has returned, and after a failure.
  [[nodiscard]] virtual Status load() = 0;
  // Takes a request, like Handler.
  virtual void handle(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer) = 0;
  // Takes a request from --metrics-listen, which needs no key.
  virtual void handle_metrics(std::shared_ptr<const Request> request,
                              std::shared_ptr<Answer> answer) = 0;
  // Refuses work that uses the engine from now on. Idempotent.
  virtual void drain() = 0;
  // Ends every request that still runs with the error `draining`. Idempotent.
  virtual void abort_all() = 0;
  // Takes a reloaded configuration: keys, limits, CORS.
  virtual void reload(std::shared_ptr<const Config> config) = 0;
  // Counts a reload: quire_config_reloads_total.
  virtual void count_reload(bool ok) = 0;
  // Counts a request that has ended.
  virtual void observe(const AccessRecord& record) = 0;
  // Sets the function that counts the connections.
  virtual void set_transport_stats(std::function<TransportStats()> stats) = 0;
  // Writes out files under way and closes the engine. Blocks; called once, after the last request.
  virtual void close() = 0;
};

// Makes the service of a process. `loop` must outlive it.
[[nodiscard]] std::unique_ptr<Service> make_service(std::shared_ptr<const Config> config,
                                                    Loop& loop);

}  // namespace quire::server
