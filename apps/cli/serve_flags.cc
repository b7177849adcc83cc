#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "generate.h"
#include "keys.h"
#include "options.h"
#include "quire/options.h"
#include "quire/result.h"
#include "serve.h"

namespace quire::cli {
namespace {

using server::Config;

void add_words(CLI::App& command, const char* option, std::vector<std::string>& to,
               const char* group, const std::string& help) {
  command.add_option(option, to, help + "; may be repeated")->allow_extra_args(false)->group(group);
}

void declare_listeners(CLI::App& command, ServeFlags& flags) {
  constexpr const char* kGroup = "Listening";
  Config& config = flags.config;
  command.add_option("--host", config.host, "address to listen on")
      ->capture_default_str()
      ->group(kGroup);
  command.add_option("--port", flags.port, "port to listen on; 0 takes a free one")
      ->capture_default_str()
      ->group(kGroup);
  add_words(command, "--listen", config.listen, kGroup,
            "unix:/path or unix:/path:0660, besides TCP where --host or --port is given");
  command
      .add_option("--metrics-listen", config.metrics_listen,
                  "HOST:PORT that answers /metrics without a key")
      ->group(kGroup);
  command.add_option("--tls-cert", config.tls_cert, "PEM file of the certificate chain")
      ->group(kGroup);
  command.add_option("--tls-key", config.tls_key, "PEM file of its key")->group(kGroup);
  add_words(command, "--allow-host", config.allow_host, kGroup,
            "name that the Host header may have on a loopback address");
  add_words(command, "--cors", config.cors, kGroup,
            "origin whose pages may use the server; * with keys alone");
}

void declare_access(CLI::App& command, ServeFlags& flags) {
  constexpr const char* kGroup = "Access";
  add_words(command, "--api-key-file", flags.key_line_files, kGroup, "file with one key a line");
  command
      .add_option("--keys", flags.keys_file,
                  "JSON file of keys' digests, tenants, roles and limits")
      ->group(kGroup);
  command
      .add_flag("--hash-key", flags.hash_key,
                "read a key on stdin, print its digest for --keys, and end")
      ->group(kGroup);
  command
      .add_flag("--insecure-no-auth", flags.config.insecure_no_auth,
                "serve other machines without any key")
      ->group(kGroup);
  command
      .add_option("--access-log", flags.config.access_log,
                  "file for a line of JSON per request, or off; default: stderr")
      ->group(kGroup);
  command.add_option("--log-level", flags.config.log_level, "info, warning or error")
      ->capture_default_str()
      ->group(kGroup);
}

// Takes bytes as parse_bytes reads them.
void add_size(CLI::App& command, const char* option, std::int64_t& to, const char* group,
              const char* help) {
  const auto set = [option, &to](const std::string& text) {
    const auto bytes = parse_bytes(text);
    if (!bytes.ok()) {
      throw CLI::ValidationError(option, bytes.error().message);
    }
    to = bytes.value();
  };
  command.add_option_function<std::string>(option, set, help)->group(group);
}

void declare_limits(CLI::App& command, ServeFlags& flags) {
  constexpr const char* kGroup = "Limits";
  Config& config = flags.config;
  const auto add = [&](const char* option, auto& to, const char* help) {
    command.add_option(option, to, help)->capture_default_str()->group(kGroup);
  };
  add_size(command, "--max-body", config.limits.max_body_bytes, kGroup,
           "bytes of a request's body (default 32MiB)");
  add("--max-connections", config.limits.max_connections, "connections at a time");
  add("--max-inflight", config.max_inflight, "generations that run or wait");
  command
      .add_option("--max-queued-tokens", config.max_queued_tokens, "prompt tokens that may wait")
      ->group(kGroup);
  add("--request-timeout", config.request_timeout_seconds, "seconds for a request; 0: no limit");
  add("--drain-timeout", config.drain_timeout_seconds,
      "seconds that requests may go on after SIGTERM");
  add("--stall-seconds", config.stall_seconds,
      "seconds without a step after which /health says stalled");
  add("--default-max-tokens", config.default_max_tokens, "output tokens where a chat names none");
  add("--max-n", config.max_n, "choices of a request");
  add("--stream-interval-ms", config.stream_interval_ms,
      "least time between two events of a stream; 0: each token is sent when it comes");
  add("--workers", config.workers, "threads for tokenizing and registration");
}

void declare_model(CLI::App& command, ServeFlags& flags) {
  constexpr const char* kGroup = "Model";
  command.add_option("MODEL", flags.config.model,
                     "Hugging Face folder, GGUF file, or preset:NAME (random weights)");
  command.add_option("--config", flags.config_file,
                     "JSON file with flags, without their dashes; the command line wins");
  add_words(command, "--alias", flags.config.alias, kGroup, "name that the model answers to");
  command.add_flag("--any-model", flags.config.any_model, "answer whatever model a request names")
      ->group(kGroup);
  CLI::Option* lenient =
      command.add_flag("--lenient", flags.lenient, "accept unknown fields, and name them")
          ->group(kGroup);
  command.add_flag("--strict", flags.strict, "refuse unknown fields everywhere")
      ->group(kGroup)
      ->excludes(lenient);
}

Error usage(std::string message) {
  return {.code = ErrorCode::kInvalidArgument, .message = std::move(message)};
}

// Gives an option its texts, as a command line would.
Status give(CLI::Option& option, const std::vector<std::string>& texts, const std::string& name) {
  try {
    for (const std::string& text : texts) {
      option.add_result(text);
    }
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    return usage(name + ": " + error.what());
  }
  return {};
}

// Returns the texts of a value of --config; none for a switch that is off.
Result<std::vector<std::string>> texts_of(const boost::json::value& value,
                                          const std::string& name) {
  std::vector<std::string> texts;
  switch (value.kind()) {
    case boost::json::kind::null:
      return texts;
    case boost::json::kind::bool_:
      return value.get_bool() ? std::vector<std::string>{"true"} : texts;
    case boost::json::kind::string:
      return std::vector<std::string>{std::string(value.get_string().c_str())};
    case boost::json::kind::object:
      return usage(name + ": want a value, not an object");
    case boost::json::kind::array:
      for (const boost::json::value& each : value.get_array()) {
        if (each.is_array()) {
          return usage(name + ": want a list of values");
        }
        QUIRE_TRY(const auto inner, texts_of(each, name));
        texts.insert(texts.end(), inner.begin(), inner.end());
      }
      return texts;
    default:
      return std::vector<std::string>{boost::json::serialize(value)};
  }
}

// Fills what the command line leaves out.
Status apply_config_file(CLI::App& command, const std::string& file) {
  const auto text = read_text(file);
  if (!text.ok()) {
    return Error{.code = ErrorCode::kIo, .message = "--config: " + text.error().message};
  }
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(*text, error);
  if (error || !value.is_object()) {
    return Error{.code = ErrorCode::kCorrupt,
                 .message = "--config " + file + ": " +
                            (error ? "not JSON: " + error.message() : "want an object")};
  }
  for (const auto& [key, entry] : value.get_object()) {
    const std::string name = "--config " + file + ": " + std::string(key);
    CLI::Option* const option = command.get_option_no_throw("--" + std::string(key));
    if (option == nullptr || key == "config" || key == "hash-key" || key == "help") {
      return usage(name + ": unknown key; keys are flags without the dashes before them");
    }
    const bool takes_value = option->get_items_expected_max() > 0;
    if (takes_value == entry.is_bool()) {
      return usage(name + (takes_value ? ": want a value" : ": want true or false"));
    }
    QUIRE_TRY(const std::vector<std::string> texts, texts_of(entry, name));
    if (option->count() == 0 && !texts.empty()) {
      QUIRE_TRY_STATUS(give(*option, texts, name));
    }
  }
  return {};
}

// Unites the keys of files and of the environment.
Result<std::shared_ptr<const server::KeyTable>> read_keys(const ServeFlags& flags) {
  auto table = std::make_shared<server::KeyTable>();
  const auto failed = [](const char* flag, const Error& error) {
    return Error{.code = ErrorCode::kIo, .message = std::string(flag) + ": " + error.message};
  };
  for (const std::string& file : flags.key_line_files) {
    const auto text = read_text(file);
    const Status added = text.ok() ? table->add_lines(*text, file) : Status(text.error());
    if (!added.ok()) {
      return failed("--api-key-file", added.error());
    }
  }
  if (!flags.keys_file.empty()) {
    const auto text = read_text(flags.keys_file);
    const Status added = text.ok() ? table->add_json(*text, flags.keys_file) : Status(text.error());
    if (!added.ok()) {
      return failed("--keys", added.error());
    }
  }
  if (const char* const key = std::getenv("QUIRE_API_KEY"); key != nullptr && *key != '\0') {
    if (const Status added = table->add_key(key); !added.ok()) {
      return failed("QUIRE_API_KEY", added.error());
    }
  }
  return std::shared_ptr<const server::KeyTable>(table);
}

}  // namespace

void declare_serve(CLI::App& command, ServeFlags& flags) {
  declare_model(command, flags);
  declare_listeners(command, flags);
  declare_access(command, flags);
  declare_limits(command, flags);
  add_engine_options(command, flags.config.engine);
}

GivenOptions given_options(const CLI::App& command) {
  GivenOptions given;
  for (const CLI::Option* const option : command.get_options({})) {
    if (option->count() > 0) {
      const std::string name =
          option->get_positional() ? option->get_name(true) : "--" + option->get_lnames().front();
      given.emplace_back(name, option->results());
    }
  }
  return given;
}

Result<std::shared_ptr<const Config>> read_serve_config(const GivenOptions& given) {
  ServeFlags flags;
  CLI::App command("", "serve");
  declare_serve(command, flags);
  refuse_no_numbers(command);
  for (const auto& [name, texts] : given) {
    QUIRE_TRY_STATUS(give(*command.get_option(name), texts, name));
  }
  if (!flags.config_file.empty()) {
    QUIRE_TRY_STATUS(apply_config_file(command, flags.config_file));
  }
  const auto has = [&](const char* option) { return command.get_option(option)->count() > 0; };
  Config& config = flags.config;
  if (config.model.empty()) {
    return usage("MODEL is required: quire serve [OPTIONS] MODEL");
  }
  if (flags.port < 0 || flags.port > std::numeric_limits<std::uint16_t>::max()) {
    return usage("--port: want 0 to 65535, got " + std::to_string(flags.port));
  }
  if (flags.lenient && flags.strict) {
    return usage("--lenient and --strict exclude each other");
  }
  config.port = static_cast<std::uint16_t>(flags.port);
  config.has_tcp = has("--host") || has("--port") || config.listen.empty();
  config.has_max_batch_tokens = has("--max-batch-tokens");
  config.unknown_fields = flags.lenient  ? server::UnknownFields::kLenient
                          : flags.strict ? server::UnknownFields::kStrict
                                         : server::UnknownFields::kByPath;
  QUIRE_TRY(config.keys, read_keys(flags));
  return std::shared_ptr<const Config>(std::make_shared<Config>(std::move(config)));
}

}  // namespace quire::cli
