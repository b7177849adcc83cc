// Api: takes requests, finds their endpoints, reads their bodies and calls the handlers. It knows
// no sockets and no process.
#pragma once

#include <memory>
#include <string>

#include "api/call.h"
#include "config.h"
#include "engine.h"
#include "loop.h"
#include "message.h"

namespace quire::server {

// The API over an engine. Threads: the loop's thread.
class Api {
 public:
  // Makes the API. `loop` outlives it.
  Api(std::shared_ptr<const Config> config, Loop& loop);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // Takes the engine, whose model is loaded. `engine` outlives the API.
  void set_engine(Engine& engine);
  // Takes a request, like Handler.
  void handle(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer);
  // Takes a request from the listener of metrics.
  void handle_metrics(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer);
  // Ends every request that runs with the error `draining`.
  void abort_all();
  [[nodiscard]] Services& services() { return services_; }

 private:
  void route(const CallPtr& call);
  void read_body(const CallPtr& call);
  void take_body(const CallPtr& call, Checked<json::value> body);

  Services services_;
};

}  // namespace quire::server
