// What people may set, checked, and sizes as they write them.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>

#include "quire/base/str.h"
#include "quire/checkpoints.h"
#include "quire/engine/session_service.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr double kKibi = 1024.0, kKilo = 1000.0;
constexpr Unit kUnits[] = {{"", 1},
                           {"B", 1},
                           {"K", kKibi},
                           {"M", kKibi* kKibi},
                           {"G", kKibi* kKibi* kKibi},
                           {"T", kKibi* kKibi* kKibi* kKibi},
                           {"KiB", kKibi},
                           {"MiB", kKibi* kKibi},
                           {"GiB", kKibi* kKibi* kKibi},
                           {"TiB", kKibi* kKibi* kKibi* kKibi},
                           {"KB", kKilo},
                           {"MB", kKilo* kKilo},
                           {"GB", kKilo* kKilo* kKilo},
                           {"TB", kKilo* kKilo* kKilo* kKilo}};
constexpr double kMaxBytes = 1e15;  // a petabyte: beyond it, it is a slip

// "gib" and "GIB" are "GiB".
bool is_unit(std::string_view written, std::string_view name) {
  const auto same = [](unsigned char a, unsigned char b) {
    return std::toupper(a) == std::toupper(b);
  };
  return std::ranges::equal(written, name, same);
}

Status out_of_range(std::string_view option, std::int64_t value, std::string_view range) {
  return {ErrorCode::kInvalidArgument, base::str_cat(option, " must be ", range, ", not ", value)};
}

Status check_name(std::string_view option, const std::string& value,
                  std::initializer_list<std::string_view> known) {
  std::string list;
  for (const std::string_view name : known) {
    if (value == name) {
      return {};
    }
    list += base::str_cat(list.empty() ? "" : ", ", '"', name, '"');
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(option, " must be one of ", list, ", not ", base::quoted(value))};
}

// "cuda" or "cuda:N".
bool names_cuda(std::string_view device) {
  constexpr std::string_view kName = "cuda";
  if (!device.starts_with(kName)) {
    return false;
  }
  device.remove_prefix(kName.size());
  return device.empty() || (device.size() > 1 && device.front() == ':' &&
                            device.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) {
    unit.remove_prefix(1);
  }
  for (const Unit& known : kUnits) {
    if (failure == std::errc() && is_unit(unit, known.name) && value >= 0 &&
        value * known.bytes <= kMaxBytes) {
      return static_cast<std::int64_t>(value * known.bytes);
    }
  }
  return {
      ErrorCode::kInvalidArgument,
      base::str_cat(base::quoted(text),
                    " is not a size; write 1073741824, 512MiB, 1GiB or 1G, or 1GB for 1000000000")};
}

Status LLMOptions::validate() const {
  if (device != "cpu" && !names_cuda(device)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("device must be \"cpu\", \"cuda\" or \"cuda:N\", not ",
                          base::quoted(device))};
  }
  QUIRE_TRY_STATUS(check_name("dtype", dtype, {"auto", "float32", "bfloat16", "float16"}));
  QUIRE_TRY_STATUS(check_name("kv_dtype", kv_dtype, {"auto", "float32", "bfloat16", "float16"}));
  if (!quantize.empty()) {
    QUIRE_TRY_STATUS(check_name("quantize", quantize, {"q8g32", "q4g32"}));
  }
  if (cache_weights && store.empty()) {
    return {ErrorCode::kInvalidArgument,
            "cache_weights needs a store to keep packed weights in; name a directory as store"};
  }
  if (cache_weights && device != "cpu") {
    return {
        ErrorCode::kUnsupported,
        base::str_cat("cache_weights is for weights that the CPU computes with, not for device ",
                      base::quoted(device), "; leave it out")};
  }
  if (block_tokens < 1 || block_tokens > 256) {
    return out_of_range("block_tokens", block_tokens, "1..256");
  }
  if (max_batch_tokens < 1 || max_batch_tokens > (1 << 20)) {
    return out_of_range("max_batch_tokens", max_batch_tokens, "1..1048576");
  }
  if (threads < 0 || threads > 1024) {
    return out_of_range("threads", threads, "0 (one per core) to 1024");
  }
  if (kv_budget_bytes <= 0 && kv_budget_bytes != kAutoBudget) {
    return out_of_range("kv_budget", kv_budget_bytes, "a positive number of bytes");
  }
  return {};
}

Status CheckpointOptions::validate() const {
  const auto refuse = [](const char* option, const auto& value, const char* range) {
    return Status(ErrorCode::kInvalidArgument,
                  base::str_cat(option, " is ", value, ", must be ", range));
  };
  constexpr double kMaxSeconds = 1e10;
  if (keep < 0) {
    return refuse("keep", keep, "at least 0");
  }
  if (max_bytes < 0) {
    return refuse("max_bytes", max_bytes, "at least 0");
  }
  if (every_tokens < 0) {
    return refuse("every_tokens", every_tokens, "at least 0");
  }
  if (!(every_seconds >= 0 && every_seconds <= kMaxSeconds)) {
    return refuse("every_seconds", every_seconds, "0 to 1e10");
  }
  return engine::SessionService::check_salt("tenant", tenant);
}

}  // namespace quire
