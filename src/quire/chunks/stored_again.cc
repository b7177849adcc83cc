#include "quire/chunks/stored_again.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/chunks/segment_kv.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/kv_seal.h"
#include "quire/kernels/parallel.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::chunks {
namespace {

// Neighbours of one pair of formats.
struct Stretch {
  std::int32_t first = 0, count = 0;
  tensor::KVGeometry from, to;

  [[nodiscard]] int head_dim(int layer) const { return to.of_layer(layer).head_dim; }
};

// Stores blocks again where the CPU reads and writes them.
class BlockStorer {
 public:
  BlockStorer(const StoreContext& context, std::span<const StoredAgain> blocks,
              const SegmentKV& read, const SegmentKV& written)
      : context_(context), blocks_(blocks), read_(read), written_(written) {}

  Status store(const Stretch& stretch, kernels::KVErrorSums& sums) {
    if (tensor::is_written_by_block(stretch.to.format)) {
      return tensor::is_written_by_block(stretch.from.format)
                 ? seal_opened(stretch, sums)
                 : seal(stretch, read_pairs(stretch), false, sums);
    }
    if (stretch.to.format == tensor::KVFormat::kInt8) {
      return encode(stretch, sums);
    }
    const std::vector<kernels::BlockPair> pairs = read_pairs(stretch);
    for (int layer = 0; layer < stretch.to.layers; ++layer) {
      kernels::open_blocks(context_.kernels, pairs, stretch.head_dim(layer),
                           read_.view(layer, stretch.first), written_.view(layer, stretch.first));
    }
    return {};
  }

 private:
  [[nodiscard]] std::vector<kernels::BlockPair> read_pairs(const Stretch& stretch) const {
    std::vector<kernels::BlockPair> pairs;
    for (std::int32_t i = stretch.first; i < stretch.first + stretch.count; ++i) {
      pairs.push_back({.from = read_.block(i), .to = written_.block(i)});
    }
    return pairs;
  }

  // Returns the error of a token of a stretch; it is counted from the first of all blocks.
  static Error refused(const Stretch& stretch, std::int64_t token) {
    return model::kv_refused(std::int64_t{stretch.first} * stretch.to.block_tokens + token,
                             stretch.to.format, stretch.to.dtype);
  }

  // Seals blocks that are read, of plain numbers or int8. With `opens` they are opened as fp32
  // before, in a pool of one layer, and `pairs` name blocks there.
  Status seal(const Stretch& stretch, std::span<const kernels::BlockPair> pairs, bool opens,
              kernels::KVErrorSums& sums) {
    std::unique_ptr<kv_store::PagedPool> opened;
    for (int layer = 0; layer < stretch.to.layers; ++layer) {
      const int head_dim = stretch.head_dim(layer);
      tensor::PagedKVView read = read_.view(layer, stretch.first);
      if (opens) {
        QUIRE_TRY_STATUS(make_numbers(stretch, layer, opened));
        std::vector<kernels::BlockPair> to_open = read_pairs(stretch);
        for (std::size_t i = 0; i < pairs.size(); ++i) {
          to_open[i].to = pairs[i].from;
        }
        kernels::open_blocks(context_.kernels, to_open, head_dim, read, opened->view(0));
        read = opened->view(0);
      }
      std::vector<kernels::KVErrorSums> errors(pairs.size());
      std::vector<std::uint8_t> refusals(pairs.size());
      const kernels::SealParams params = {
          .blocks = pairs, .head_dim = head_dim, .refused = refusals, .errors = errors};
      if (!kernels::seal_blocks(context_.kernels, params, read,
                                written_.view(layer, stretch.first))) {
        const auto first =
            std::ranges::find_if(refusals, [](std::uint8_t why) { return why != 0; });
        const std::int64_t end = (first - refusals.begin() + 1) * stretch.to.block_tokens;
        return refused(stretch, end - *first);
      }
      for (const kernels::KVErrorSums& block : errors) {
        sums.add(block);
      }
    }
    return {};
  }

  // Makes room for the numbers of a layer, unless there is room of its size.
  [[nodiscard]] static Status make_numbers(const Stretch& stretch, int layer,
                                           std::unique_ptr<kv_store::PagedPool>& opened) {
    tensor::KVGeometry numbers = stretch.to.of_layer(layer);
    numbers.format = tensor::KVFormat::kPlain;
    numbers.dtype = tensor::DType::kFloat32;
    if (opened == nullptr || opened->geometry().block_bytes() != numbers.block_bytes() ||
        opened->geometry().head_dim != numbers.head_dim) {
      QUIRE_TRY(auto made, kv_store::PagedPool::create(numbers, stretch.count));
      opened = std::make_unique<kv_store::PagedPool>(std::move(made));
    }
    return {};
  }

  // Seals blocks of codes of a block by opening them as fp32, which holds what they stand for.
  Status seal_opened(const Stretch& stretch, kernels::KVErrorSums& sums) {
    std::vector<kernels::BlockPair> pairs = read_pairs(stretch);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs[i].from = static_cast<std::int32_t>(i);
    }
    return seal(stretch, pairs, true, sums);
  }

  // Stores tokens as int8. Blocks are shared among threads.
  Status encode(const Stretch& stretch, kernels::KVErrorSums& sums) {
    const auto count = static_cast<std::size_t>(stretch.count);
    for (int layer = 0; layer < stretch.to.layers; ++layer) {
      const tensor::KVGeometry own = stretch.to.of_layer(layer);
      const std::int64_t cost = std::int64_t{2} * own.block_tokens * own.kv_heads * own.head_dim;
      std::vector<kernels::KVErrorSums> errors(count);
      std::vector<std::int32_t> refusals(count, -1);  // tokens
      kernels::parallel_ranges(
          context_.kernels, stretch.count, cost, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t i = first; i < last; ++i) {
              const auto at = static_cast<std::size_t>(i);
              refusals[at] = encode_block(stretch, layer, static_cast<std::int32_t>(i), errors[at]);
            }
          });
      const auto found =
          std::ranges::find_if(refusals, [](std::int32_t token) { return token >= 0; });
      if (found != refusals.end()) {
        return refused(stretch, (found - refusals.begin()) * stretch.to.block_tokens + *found);
      }
      for (const kernels::KVErrorSums& block : errors) {
        sums.add(block);
      }
    }
    return {};
  }

  // Returns the first token of a block of a stretch that int8 cannot hold, or -1.
  [[nodiscard]] std::int32_t encode_block(const Stretch& stretch, int layer, std::int32_t number,
                                          kernels::KVErrorSums& sums) const {
    const std::int32_t index = stretch.first + number;
    const tensor::PagedKVView source = read_.view(layer, index);
    const tensor::PagedKVView target = written_.view(layer, index);
    std::vector<float> k(static_cast<std::size_t>(target.head_dim)), v(k.size());
    const std::int32_t tokens = blocks_[static_cast<std::size_t>(index)].tokens;
    for (std::int32_t token = 0; token < tokens; ++token) {
      const tensor::KVSlot in = {.block = read_.block(index), .offset = token};
      const tensor::KVSlot out = {.block = written_.block(index), .offset = token};
      for (int head = 0; head < target.kv_heads; ++head) {
        const auto numbers = static_cast<std::size_t>(stretch.head_dim(layer));
        kernels::read_key(source, head, in, std::span(k).first(numbers));
        kernels::read_value(source, head, in, std::span(v).first(numbers));
        if (!kernels::store_int8(target, head, out, k, v)) {
          return token;
        }
        kernels::add_errors(target, head, out, k, v, sums);
      }
    }
    return -1;
  }

  const StoreContext& context_;
  std::span<const StoredAgain> blocks_;
  const SegmentKV& read_;
  const SegmentKV& written_;
};

// Returns the stretches of blocks that change their format.
std::vector<Stretch> stretches_of(const kv_store::PagedPool& pool,
                                  std::span<const StoredAgain> blocks) {
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const kv::FormatId from = blocks[i].from.format(), to = blocks[i].to.format();
    const bool goes_on =
        i > 0 && blocks[i - 1].from.format() == from && blocks[i - 1].to.format() == to;
    if (from == to) {
      continue;
    }
    if (!goes_on) {
      stretches.push_back({.first = static_cast<std::int32_t>(i),
                           .from = pool.geometry(from),
                           .to = pool.geometry(to)});
    }
    ++stretches.back().count;
  }
  return stretches;
}

}  // namespace

Status store_again(const StoreContext& context, std::span<const StoredAgain> blocks,
                   kernels::KVErrorSums& sums) {
  const std::vector<Stretch> stretches = stretches_of(context.pool, blocks);
  if (!stretches.empty()) {
    std::vector<kv::BlockRef> from, to;
    for (const StoredAgain& block : blocks) {
      from.push_back(block.from);
      to.push_back(block.to);
    }
    QUIRE_TRY(const SegmentKV read, SegmentKV::open(context.pool, from, true));
    QUIRE_TRY(SegmentKV written, SegmentKV::open(context.pool, to, false));
    BlockStorer storer(context, blocks, read, written);
    for (const Stretch& stretch : stretches) {
      QUIRE_TRY_STATUS(storer.store(stretch, sums));
    }
    QUIRE_TRY_STATUS(written.write_back());
  }
  for (const StoredAgain& block : blocks) {
    if (block.from.format() == block.to.format()) {
      QUIRE_TRY_STATUS(context.pool.copy({.from = block.from.id,
                                          .to = block.to.id,
                                          .tokens = block.tokens,
                                          .format = block.to.format()}));
    }
  }
  return {};
}

}  // namespace quire::chunks
