#include "quire/engine/row_slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/engine/entry_list.h"
#include "quire/kv/format.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"

namespace quire::engine {

kv::RunView RowSlots::OwnBlock::view() const {
  return {.blocks = {&block, 1},
          .num_tokens = num_tokens,
          .start_position = run_position + first_token,
          .stored_from = first_token,
          .format = format,
          .last_format = format};
}

void RowSlots::begin(const kv::LedgerConfig& config) {
  block_tokens_ = config.block_tokens;
  for (std::size_t format = 0; format < config.formats.size(); ++format) {
    opens_[format] = config.formats[format].open.has_value();
  }
  staging_ = {static_cast<std::uint8_t>(config.formats.size())};
  num_staged_ = 0;
  num_formats_ = 1;
  slots_.clear();
  formats_.clear();
  kept_.clear();
  keeps_ = false;
  seals_.clear();
  own_blocks_.clear();
  copied_rows_.clear();
  copy_slots_.clear();
  copy_formats_.clear();
}

std::span<const std::uint8_t> RowSlots::formats() const {
  return num_formats_ == 1 ? std::span<const std::uint8_t>() : std::span(formats_);
}

std::span<const std::uint8_t> RowSlots::kept() const {
  return keeps_ ? std::span(kept_) : std::span<const std::uint8_t>();
}

void RowSlots::add(const kv::RunView& open, RowRange rows) {
  const std::int32_t end = open.num_tokens + rows.count;
  for (std::int32_t token = open.num_tokens; token < end;) {
    const std::int32_t index = token / block_tokens_;
    const std::int32_t next = std::min(end, (index + 1) * block_tokens_);
    const std::int32_t before = token - open.num_tokens;
    add_block(
        open, index,
        {.first = rows.first + before, .count = next - token, .position = rows.position + before});
    token = next;
  }
}

void RowSlots::add_copies(const kv::RunView& open, std::span<const std::int32_t> rows) {
  std::int32_t token = open.num_tokens - static_cast<std::int32_t>(rows.size());
  for (const std::int32_t row : rows) {
    const std::int32_t index = token / block_tokens_;
    kv::FormatId format = open.format;
    BlockId block;
    if (!opens(open.format)) {
      block = open.blocks[static_cast<std::size_t>(index)];
    } else {
      const auto found = std::ranges::find(open.open_blocks, index, &kv::OpenBlock::index);
      QUIRE_CHECK(found != open.open_blocks.end(), "a copied row has no block");
      block = found->block.id;
      format = found->block.format();
    }
    copied_rows_.push_back(row);
    copy_slots_.push_back({.block = block.value, .offset = token % block_tokens_});
    copy_formats_.push_back(format.value);
    num_formats_ = std::max(num_formats_, static_cast<std::uint8_t>(format.value + 1));
    ++token;
  }
}

model::RowCopies RowSlots::copies() const {
  return {.rows = copied_rows_, .slots = copy_slots_, .formats = copy_formats_};
}

// Adds the rows of one block of the run.
void RowSlots::add_block(const kv::RunView& open, std::int32_t index, RowRange rows) {
  const std::int32_t first_token = index * block_tokens_;
  const std::int32_t begin = rows.position - open.start_position - first_token;
  OwnBlock own{.format = open.format,
               .num_tokens = begin + rows.count,
               .first_token = first_token,
               .run_position = open.start_position,
               .rows = rows};
  if (!opens(open.format)) {
    own.block = open.blocks[static_cast<std::size_t>(index)];
  } else {
    const auto found = std::ranges::find(open.open_blocks, index, &kv::OpenBlock::index);
    const bool staged = found == open.open_blocks.end();
    QUIRE_CHECK(!staged || rows.count == block_tokens_, "a token to be computed has no block");
    own.block = staged ? BlockId{num_staged_++} : found->block.id;
    own.format = staged ? staging_ : found->block.format();
    if (own.num_tokens == block_tokens_) {
      seals_.push_back({.from_format = own.format.value,
                        .to_format = open.format.value,
                        .from = own.block.value,
                        .to = open.blocks[static_cast<std::size_t>(index)].value,
                        .last_row = rows.first + rows.count - 1});
    }
    own_blocks_.push_back(own);
  }
  QUIRE_CHECK(own.block.value >= 0, "a token to be computed has no block");
  for (std::int32_t i = 0; i < rows.count; ++i) {
    slots_.push_back({.block = own.block.value, .offset = begin + i});
    formats_.push_back(own.format.value);
    const bool kept = first_token + begin + i < open.kept_tokens;
    kept_.push_back(kept ? 1 : 0);
    keeps_ = keeps_ || kept;
  }
  num_formats_ = std::max(num_formats_, static_cast<std::uint8_t>(own.format.value + 1));
}

}  // namespace quire::engine
