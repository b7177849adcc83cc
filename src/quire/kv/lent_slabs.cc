#include "quire/kv/lent_slabs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

LentSlabs::LentSlabs(const LedgerConfig& config)
    : all_bytes_(config.num_ids() * config.block_bytes(kOwnFormat)),
      slab_bytes_(config.slab_blocks * config.block_bytes(kOwnFormat)),
      num_own_blocks_(config.num_ids()),
      slab_blocks_(config.slab_blocks) {
  for (const BlockFormat& format : config.formats) {
    block_bytes_.push_back(format.block_bytes);
  }
  if (config.formats.size() == 1) {
    return;
  }
  pools_.reserve(config.formats.size() - 1);
  for (std::uint8_t i = 1; i < config.num_formats(); ++i) {
    pools_.emplace_back(static_cast<std::int32_t>(all_bytes_ / block_bytes_[i]), FormatId{i});
  }
  owners_.resize(static_cast<std::size_t>((all_bytes_ + slab_bytes_ - 1) / slab_bytes_));
  used_.resize(owners_.size());
  kept_.resize(owners_.size());
}

LentSlabs::Blocks LentSlabs::own_blocks(std::int32_t slab) const {
  const std::int32_t first = slab * slab_blocks_;
  return {.first = {first}, .count = std::min(slab_blocks_, num_own_blocks_ - first)};
}

std::int64_t LentSlabs::bytes_in_use() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    bytes += pools_[i].num_taken() * block_bytes_[i + 1];
  }
  return bytes;
}

std::int64_t LentSlabs::bytes_lent() const {
  std::int64_t blocks = 0;
  for (std::int32_t slab = 0; slab < num_slabs(); ++slab) {
    blocks += owner(slab) == kOwnFormat ? 0 : own_blocks(slab).count;
  }
  return blocks * block_bytes_.front();
}

// A block is smaller than a slab, so it touches one or two.
LentSlabs::SlabRange LentSlabs::touched_by(FormatId format, std::int32_t block) const {
  const std::int64_t first = block * block_bytes_[format.value];
  const std::int64_t last = first + block_bytes_[format.value] - 1;
  return {.first = static_cast<std::int32_t>(first / slab_bytes_),
          .last = static_cast<std::int32_t>(last / slab_bytes_)};
}

LentSlabs::Blocks LentSlabs::gained_by(FormatId format, std::int32_t slab,
                                       std::span<const FormatId> owners) const {
  const auto has = [&](std::int32_t other) {
    return other >= 0 && other < num_slabs() && owners[static_cast<std::size_t>(other)] == format;
  };
  const std::int64_t bytes = block_bytes_[format.value];
  const std::int64_t begin = slab * slab_bytes_;
  const std::int64_t end = std::min(begin + slab_bytes_, all_bytes_);
  std::int64_t first = begin / bytes;
  std::int64_t behind = end / bytes;
  first += begin % bytes != 0 && !has(slab - 1) ? 1 : 0;
  behind += end % bytes != 0 && has(slab + 1) && behind < pool(format).num_blocks() ? 1 : 0;
  return {.first = {static_cast<std::int32_t>(first)},
          .count = static_cast<std::int32_t>(std::max<std::int64_t>(behind - first, 0))};
}

std::int32_t LentSlabs::within_reach(FormatId format, std::span<const std::int32_t> costs,
                                     std::int64_t bytes) const {
  std::vector<FormatId> owners = owners_;
  std::int32_t blocks = pool(format).num_free();
  for (std::int32_t slab = 0; slab < num_slabs(); ++slab) {
    if (costs[static_cast<std::size_t>(slab)] != kPinned && bytes >= bytes_of(slab)) {
      bytes -= bytes_of(slab);
      blocks += gained_by(format, slab, owners).count;
      owners[static_cast<std::size_t>(slab)] = format;
    }
  }
  return blocks;
}

LentSlabs::Plan LentSlabs::plan(const BlockCounts& wanted, std::span<const std::int32_t> costs,
                                std::int64_t bytes) const {
  Plan plan;
  std::vector<FormatId> owners = owners_;
  for (std::uint8_t i = 1; i <= num_others(); ++i) {
    const FormatId format{i};
    std::int32_t lacking = wanted[format] - pool(format).num_free();
    while (lacking > 0) {
      using Rank = std::tuple<bool, std::int32_t, std::int32_t>;  // gives none, cost, - blocks
      Rank best;
      std::int32_t chosen = -1;
      for (std::int32_t slab = 0; slab < num_slabs(); ++slab) {
        const std::int32_t cost = costs[static_cast<std::size_t>(slab)];
        if (cost == kPinned || owners[static_cast<std::size_t>(slab)] != kOwnFormat ||
            bytes < bytes_of(slab)) {
          continue;
        }
        const std::int32_t gain = gained_by(format, slab, owners).count;
        const Rank rank(gain == 0, cost, -gain);
        if (chosen < 0 || rank <= best) {
          best = rank;
          chosen = slab;
        }
      }
      if (chosen < 0) {
        break;
      }
      lacking -= gained_by(format, chosen, owners).count;
      owners[static_cast<std::size_t>(chosen)] = format;
      plan.loans.push_back({.slab = chosen, .to = format});
      plan.own_blocks += own_blocks(chosen).count;
      bytes -= bytes_of(chosen);
    }
    plan.lacking[format] = std::max(lacking, 0);
  }
  return plan;
}

void LentSlabs::lend(Loan loan) {
  QUIRE_CHECK(owner(loan.slab) == kOwnFormat, "a slab was lent twice");
  const Blocks gained = gained_by(loan.to, loan.slab, owners_);
  owners_[static_cast<std::size_t>(loan.slab)] = loan.to;
  pool_of(loan.to).offer(gained.first, gained.count);
}

void LentSlabs::keep_loans() {
  std::transform(owners_.begin(), owners_.end(), kept_.begin(),
                 [](FormatId format) { return format != kOwnFormat; });
}

std::int32_t LentSlabs::blocks_kept() const {
  std::int32_t blocks = 0;
  for (std::int32_t slab = 0; slab < num_slabs(); ++slab) {
    blocks += kept_[static_cast<std::size_t>(slab)] ? own_blocks(slab).count : 0;
  }
  return blocks;
}

void LentSlabs::take_back_unused(std::int32_t slab, BlockPool& own) {
  const auto at = static_cast<std::size_t>(slab);
  if (used_[at] > 0 || kept_[at]) {
    return;
  }
  const FormatId format = owner(slab);
  const Blocks lost = gained_by(format, slab, owners_);
  pool_of(format).withhold(lost.first, lost.count);
  owners_[static_cast<std::size_t>(slab)] = kOwnFormat;
  const Blocks back = own_blocks(slab);
  own.offer(back.first, back.count);
}

// Blocks side by side may lie in fewer slabs than were lent for them.
std::span<const BlockRef> LentSlabs::acquire(FormatId format, std::int32_t count, BlockPool& own) {
  const std::span<const BlockRef> taken = pool_of(format).acquire(count, BlockId{});
  for (const BlockRef block : taken) {
    const SlabRange slabs = touched_by(format, block.id.value);
    for (std::int32_t slab = slabs.first; slab <= slabs.last; ++slab) {
      ++used_[static_cast<std::size_t>(slab)];
    }
  }
  for (std::int32_t slab = 0; slab < num_slabs(); ++slab) {
    if (owner(slab) == format) {
      take_back_unused(slab, own);
    }
  }
  return taken;
}

void LentSlabs::release(BlockRef block, BlockPool& own) {
  if (!pool_of(block.format()).release(block)) {
    return;
  }
  const SlabRange slabs = touched_by(block.format(), block.id.value);
  for (std::int32_t slab = slabs.first; slab <= slabs.last; ++slab) {
    --used_[static_cast<std::size_t>(slab)];
    take_back_unused(slab, own);
  }
}

bool LentSlabs::may_use(FormatId format, std::int32_t block) const {
  const SlabRange slabs = touched_by(format, block);
  return owner(slabs.first) == format && owner(slabs.last) == format;
}

Status LentSlabs::check_own(const BlockPool& own) const {
  for (std::int32_t i = 0; i < own.num_blocks(); ++i) {
    const bool there = own.is_free(BlockId{i}) || own.references(BlockId{i}) > 0;
    const bool lent = num_slabs() > 0 && owner(i / slab_blocks_) != kOwnFormat;
    if (there == lent) {
      return {ErrorCode::kInternal,
              base::str_cat("block ", i, " of the pool's own format is ", lent ? "" : "not ",
                            "in a slab that is lent, and ", there ? "can" : "cannot", " be used")};
    }
  }
  return {};
}

Status LentSlabs::check(const BlockPool& own) const {
  QUIRE_TRY_STATUS(check_own(own));
  std::vector<std::int32_t> used(owners_.size());
  for (std::uint8_t f = 1; f <= num_others(); ++f) {
    const FormatId format{f};
    QUIRE_TRY_STATUS(pool(format).check());
    for (std::int32_t i = 0; i < pool(format).num_blocks(); ++i) {
      const bool taken = pool(format).references(BlockId{i}) > 0;
      if (may_use(format, i) != (taken || pool(format).is_free(BlockId{i}))) {
        return {ErrorCode::kInternal, base::str_cat("block ", i, " of format ", +f,
                                                    " does not go "
                                                    "with the slabs of that format")};
      }
      const SlabRange slabs = touched_by(format, i);
      for (std::int32_t slab = slabs.first; slab <= slabs.last; ++slab) {
        used[static_cast<std::size_t>(slab)] += taken ? 1 : 0;
      }
    }
  }
  for (std::int32_t slab = 0; slab < num_slabs(); ++slab) {
    const auto at = static_cast<std::size_t>(slab);
    if (used[at] != used_[at] || (used[at] > 0 || kept_[at]) != (owner(slab) != kOwnFormat)) {
      return {ErrorCode::kInternal,
              base::str_cat("slab ", slab, " of format ", +owner(slab).value, " has ", used[at],
                            " used blocks, counted are ", used_[at])};
    }
  }
  return {};
}

}  // namespace quire::kv
