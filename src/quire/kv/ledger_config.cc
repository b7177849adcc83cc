// LedgerConfig: what a ledger may be, and the sizes that follow from it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "quire/base/str.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

constexpr std::int32_t kMaxBlockTokens = 256;
constexpr std::int64_t kMaxSlots = std::int64_t{1} << 30;  // so that no slot number overflows

// Every slab shall hold a block of the format, wherever the slab begins.
Status check_format(const LedgerConfig& config, std::size_t index) {
  const BlockFormat& format = config.formats[index];
  if (format.block_bytes < 1 ||
      format.block_bytes > std::numeric_limits<std::int64_t>::max() / kMaxSlots) {
    return {
        ErrorCode::kInvalidArgument,
        base::str_cat("a block of format ", index, " has ", format.block_bytes,
                      " bytes; give 1 to ", std::numeric_limits<std::int64_t>::max() / kMaxSlots)};
  }
  if (format.open && format.open->value >= config.formats.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("format ", index, " opens as format ", +format.open->value,
                          "; there is no such format")};
  }
  if (format.open && (format.open->value == index || config.formats[format.open->value].open)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("format ", index, " opens as format ", +format.open->value,
                          ", which is written block by block itself")};
  }
  const std::optional<FormatId> lent = config.lent_open_format();
  if (format.open && lent && format.open != kOwnFormat && format.open != lent) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("format ", index, " opens as format ", +format.open->value, "; give ",
                          +lent->value, ", which others open as")};
  }
  if (index == 0) {
    return {};
  }
  const std::int64_t own = config.formats[0].block_bytes;
  const std::int64_t least = (2 * format.block_bytes + own - 1) / own;
  if (config.slab_blocks < least) {
    return {
        ErrorCode::kInvalidArgument,
        base::str_cat("slab_blocks is ", config.slab_blocks, "; give ", least,
                      " or more, since a slab holds two blocks of ", format.block_bytes, " bytes")};
  }
  const std::int64_t blocks = config.num_ids() * own / format.block_bytes;
  if (blocks > kMaxSlots / config.block_tokens) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the pool has ", blocks, " blocks of ", format.block_bytes,
                          " bytes; give a num_blocks with which it has at most ",
                          kMaxSlots / config.block_tokens)};
  }
  return {};
}

// A block without its window part shall still have bytes, and be of one size.
Status check_window_group(const LedgerConfig& config) {
  const WindowGroup& group = config.window_group;
  if (group.tokens == 0 && group.block_bytes == 0) {
    return {};
  }
  if (group.tokens < 1 || group.block_bytes < 1 || config.formats.empty() ||
      group.block_bytes >= config.block_bytes(kOwnFormat)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the window group has a window of ", group.tokens, " tokens and ",
                          group.block_bytes,
                          " bytes of a block; give a window, and a part of the block's bytes")};
  }
  if (config.window_tokens > 0 || config.num_states > 0) {
    return {ErrorCode::kInvalidArgument,
            "a window group beside states or beside a window of all layers is not implemented"};
  }
  return {};
}

// The pool shall have blocks left beside the slabs of open blocks.
Status check_standing(const LedgerConfig& config) {
  const std::int64_t open = config.open_format() ? config.block_bytes(*config.open_format()) : 0;
  const std::int64_t most = open == 0 ? 0 : config.budget_bytes() / (2 * open);
  if (config.standing_open_blocks >= 0 && config.standing_open_blocks <= most) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("standing_open_blocks is ", config.standing_open_blocks, "; give 0 to ",
                        most, ", which is half of the pool")};
}

}  // namespace

Status LedgerConfig::validate() const {
  if (block_tokens < 1 || block_tokens > kMaxBlockTokens) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("block_tokens is ", block_tokens, "; give 1 to ", kMaxBlockTokens)};
  }
  if (num_blocks < 1 || std::int64_t{num_blocks} * block_tokens > kMaxSlots) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("num_blocks is ", num_blocks, "; give 1 to ", kMaxSlots / block_tokens,
                          " blocks of ", block_tokens, " tokens")};
  }
  if (window_tokens < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("window_tokens is ", window_tokens, "; give 0 (no window) or more")};
  }
  QUIRE_TRY_STATUS(check_window_group(*this));
  if (num_states < 0 || num_states == 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("num_states is ", num_states, "; give 0 (no states) or at least 2")};
  }
  if (num_states > 0 && window_tokens > 0) {
    return {ErrorCode::kInvalidArgument, "states beside a window are not implemented"};
  }
  if (extent_blocks < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("extent_blocks is ", extent_blocks, "; give 1 (anywhere) or more")};
  }
  if (formats.empty() || formats.size() > kMaxFormats) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("there are ", formats.size(), " formats; give 1 to ", kMaxFormats)};
  }
  for (std::size_t i = 0; i < formats.size(); ++i) {
    QUIRE_TRY_STATUS(check_format(*this, i));
  }
  return check_standing(*this);
}

std::optional<FormatId> LedgerConfig::lent_open_format() const {
  for (const BlockFormat& format : formats) {
    if (format.open && format.open != kOwnFormat) {
      return format.open;
    }
  }
  return std::nullopt;
}

std::int64_t LedgerConfig::budget_bytes() const { return num_blocks * block_bytes(kOwnFormat); }

std::int32_t LedgerConfig::num_ids() const {
  if (window_group.tokens == 0) {
    return num_blocks;
  }
  return static_cast<std::int32_t>(
      std::min(budget_bytes() / full_bytes(), kMaxSlots / block_tokens));
}

std::int64_t LedgerConfig::block_bytes(FormatId format) const {
  return formats[format.value].block_bytes;
}

std::int64_t LedgerConfig::bytes_of(const BlockCounts& blocks) const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    bytes += blocks.of[i] * formats[i].block_bytes;
  }
  return bytes;
}

BlockCounts LedgerConfig::blocks_for(std::int64_t tokens, FormatId format) const {
  BlockCounts blocks;
  blocks[format] = static_cast<std::int32_t>(tokens / block_tokens);
  if (tokens % block_tokens != 0) {
    ++blocks[last_format(tokens, format)];
  }
  return blocks;
}

FormatId LedgerConfig::last_format(std::int64_t tokens, FormatId format) const {
  return tokens % block_tokens == 0 ? format : formats[format.value].open.value_or(format);
}

}  // namespace quire::kv
