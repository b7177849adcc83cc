// Runs `quire serve`: listeners, signals, the model's loading, the end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "config.h"
#include "loop.h"
#include "quire/result.h"
#include "service.h"

namespace quire::server {

// Holds what `quire serve` was given, and how to read it again. Plain data.
struct ProcessOptions {
  std::shared_ptr<const Config> config;
  // Reads --config, keys and the like anew, for SIGHUP.
  std::function<Result<std::shared_ptr<const Config>>()> reread;
  // Makes what answers; benchmarks make one without a model.
  std::function<std::unique_ptr<Service>(std::shared_ptr<const Config>, Loop&)> make = make_service;
};

// Checks what can be checked before anything is opened: ranges, options that exclude each other,
// rule P4. kInvalidArgument names the flag.
[[nodiscard]] Status check_config(const Config& config);

// Opens the listeners, says so in one line of stdout, loads the model and serves until a signal.
// Returns where that cannot begin or the model does not load; otherwise ends the process with the
// exit codes of rule P5. kInvalidArgument is wrong usage.
[[nodiscard]] Error run_server(ProcessOptions options);

}  // namespace quire::server
