// Runs `quire serve`: its listeners, its signals, the loading of the model, and its end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "config.h"
#include "loop.h"
#include "quire/result.h"
#include "service.h"

namespace quire::server {

// Configuration of `quire serve`, and a way to read it again. Plain data.
struct ProcessOptions {
  std::shared_ptr<const Config> config;
  // Reads --config, keys and the like anew, for SIGHUP.
  std::function<Result<std::shared_ptr<const Config>>()> reread;
  // Makes the service; benchmarks make one without a model.
  std::function<std::unique_ptr<Service>(std::shared_ptr<const Config>, Loop&)> make = make_service;
};

// Checks the configuration before anything is opened: ranges, exclusive options, and keys for
// listeners that others reach. kInvalidArgument names the flag.
[[nodiscard]] Status check_config(const Config& config);

// Opens the listeners, prints them in one line of stdout, loads the model and serves until a
// signal. Returns only if that cannot begin or the model does not load. Otherwise ends the process
// with its exit code. kInvalidArgument is wrong usage.
[[nodiscard]] Error run_server(ProcessOptions options);

}  // namespace quire::server
