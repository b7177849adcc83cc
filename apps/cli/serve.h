// The flags of `quire serve`, and --config, which fills those that the command line leaves out.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "quire/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

// Values of the flags of `quire serve`. Plain data.
struct ServeFlags {
  server::Config config;
  std::string config_file;
  std::vector<std::string> key_line_files;
  std::string keys_file;
  std::int32_t port = 8000;
  bool hash_key = false;
  bool lenient = false;
  bool strict = false;
};

// Declares MODEL and all flags.
void declare_serve(CLI::App& command, ServeFlags& flags);

// Options and their texts, as the command line gave them.
using GivenOptions = std::vector<std::pair<std::string, std::vector<std::string>>>;
[[nodiscard]] GivenOptions given_options(const CLI::App& command);

// Reads the configuration from `given` and from the files that it names. Errors: kInvalidArgument
// for wrong usage; kIo and kCorrupt for a file that cannot be read or parsed.
[[nodiscard]] Result<std::shared_ptr<const server::Config>> read_serve_config(
    const GivenOptions& given);

}  // namespace quire::cli
