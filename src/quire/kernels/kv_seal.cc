#include "quire/kernels/kv_seal.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/parallel.h"
#include "quire/kernels/plain_slot.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

constexpr std::int64_t kSealCost = 16;  // one number, in units of kElementsPerTask
constexpr float kLargestFp16 = 65504.0F;

// The sizes of a head block, in numbers.
struct HeadShape {
  int tokens = 0;    // of a block
  int slots = 0;     // as stored
  int dim = 0;       // as stored
  int head_dim = 0;  // of the model
};

// K or V of one head of a block: numbers, and the codes that they become. [slots][dim]
struct HeadPart {
  std::vector<float> numbers;
  std::vector<std::uint8_t> codes;

  explicit HeadPart(const HeadShape& shape)
      : numbers(static_cast<std::size_t>(shape.slots) * static_cast<std::size_t>(shape.dim)),
        codes(numbers.size()) {}
};

// Encodes whole blocks of one layer on one thread. The codes of all heads are made before the first
// byte of a target is written, so that a refused block leaves none behind.
class BlockSealer {
 public:
  BlockSealer(const tensor::PagedKVView& from, const tensor::PagedKVView& to, int head_dim)
      : from_(from),
        to_(to),
        shape_{.tokens = to.block_tokens,
               .slots = to.stored_block_tokens(),
               .dim = to.head_dim,
               .head_dim = head_dim},
        scales_at_(static_cast<std::size_t>(to.scale_offset)),
        head_bytes_(scales_at_ + static_cast<std::size_t>(
                                     tensor::kv_scales_bytes(to.format, shape_.dim, shape_.slots))),
        encoded_(head_bytes_ * static_cast<std::size_t>(to.kv_heads)),
        k_(shape_),
        v_(shape_) {}

  // Returns whether the format holds the block; if not, refused_token() says whose numbers it does
  // not hold. Adds to `errors`, unless it is null.
  bool seal(BlockPair blocks, KVErrorSums* errors) {
    for (int head = 0; head < to_.kv_heads; ++head) {
      load(head, blocks.from);
      if (!encode(encoded(head))) {
        return false;
      }
    }
    for (int head = 0; head < to_.kv_heads; ++head) {
      std::memcpy(to_.data + head * to_.head_stride + blocks.to * to_.block_stride,
                  encoded(head).data(), head_bytes_);
      if (errors != nullptr) {
        add_block_errors(head, blocks, *errors);
      }
    }
    return true;
  }

  [[nodiscard]] int refused_token() const { return refused_token_; }

 private:
  std::span<std::byte> encoded(int head) {
    return std::span(encoded_).subspan(static_cast<std::size_t>(head) * head_bytes_, head_bytes_);
  }

  void load(int head, int block) {
    const auto dim = static_cast<std::size_t>(shape_.dim);
    for (int token = 0; token < shape_.tokens; ++token) {
      const std::size_t at = static_cast<std::size_t>(token) * dim;
      read_key(from_, head, {block, token}, std::span(k_.numbers).subspan(at, dim));
      read_value(from_, head, {block, token}, std::span(v_.numbers).subspan(at, dim));
    }
  }

  bool encode(std::span<std::byte> head) {
    const std::span<std::byte> scales = head.subspan(scales_at_);
    const bool held =
        to_.format == tensor::KVFormat::kFp8 ? encode_fp8_head(scales) : encode_int4_head(scales);
    if (held) {
      pack_keys(head.data());
      pack_values(head.data() + to_.v_offset);
    }
    return held;
  }

  bool encode_fp8_head(std::span<std::byte> scales) {
    std::array<float, 2> scale = {};
    for (const auto& [part, of] : {std::pair(&k_, &scale[0]), std::pair(&v_, &scale[1])}) {
      if (!encode_fp8(part->numbers, part->codes, *of)) {
        return refuse(0, shape_.tokens, [&](int token) {
          return largest_bits(std::span(part->numbers)
                                  .subspan(index(token, 0), static_cast<std::size_t>(shape_.dim)));
        });
      }
    }
    std::ranges::fill(scales, std::byte{0});
    std::memcpy(scales.data(), scale.data(), sizeof(scale));
    return true;
  }

  bool encode_int4_head(std::span<std::byte> scales) {
    const std::size_t bytes = std::size_t{8} * static_cast<std::size_t>(shape_.dim);
    for (int first = 0; first < shape_.tokens; first += tensor::kInt4RunTokens) {
      std::byte* const run =
          scales.data() + static_cast<std::size_t>(first / tensor::kInt4RunTokens) * bytes;
      if (!encode_key_run(first, run) || !encode_value_run(first, run + bytes / 2)) {
        return false;
      }
    }
    return true;
  }

  // Encodes the channels of K of 32 tokens. Scales of all channels come first, then minimums.
  bool encode_key_run(int first, std::byte* scales) {
    std::array<float, tensor::kInt4RunTokens> x;             // NOLINT: filled below
    std::array<std::uint8_t, tensor::kInt4RunTokens> codes;  // NOLINT: filled by encoding
    for (int d = 0; d < shape_.dim; ++d) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = k_.numbers[index(first, d) + i * static_cast<std::size_t>(shape_.dim)];
      }
      Int4Scale scale;
      if (!encode_int4(x, codes, scale)) {
        return refuse(first, first + tensor::kInt4RunTokens, [&](int token) {
          return largest_bits(std::span(k_.numbers).subspan(index(token, d), 1));
        });
      }
      for (std::size_t i = 0; i < x.size(); ++i) {
        k_.codes[index(first, d) + i * static_cast<std::size_t>(shape_.dim)] = codes[i];
      }
      std::memcpy(scales + std::ptrdiff_t{2} * d, &scale.scale, sizeof(scale.scale));
      std::memcpy(scales + std::ptrdiff_t{2} * (shape_.dim + d), &scale.minimum,
                  sizeof(scale.minimum));
    }
    return true;
  }

  // Encodes the groups of V of 32 tokens. For each group scales of all tokens come first, then
  // minimums.
  bool encode_value_run(int first, std::byte* scales) {
    constexpr int kGroup = tensor::kInt4GroupChannels;
    constexpr std::ptrdiff_t kBytes = std::ptrdiff_t{2} * tensor::kInt4RunTokens;
    for (int d = 0; d < shape_.dim; d += kGroup, scales += 2 * kBytes) {
      const auto size = static_cast<std::size_t>(std::min(kGroup, shape_.head_dim - d));
      for (int token = 0; token < tensor::kInt4RunTokens; ++token) {
        const std::size_t at = index(first + token, d);
        Int4Scale scale;
        if (!encode_int4(std::span(v_.numbers).subspan(at, size),
                         std::span(v_.codes).subspan(at, size), scale)) {
          refused_token_ = first + token;
          return false;
        }
        std::memcpy(scales + std::ptrdiff_t{2} * token, &scale.scale, sizeof(scale.scale));
        std::memcpy(scales + kBytes + std::ptrdiff_t{2} * token, &scale.minimum,
                    sizeof(scale.minimum));
      }
    }
    return true;
  }

  // Notes the token in [first, end) whose numbers are the largest, as bits. Returns false.
  template <class Largest>
  bool refuse(int first, int end, Largest largest) {
    refused_token_ = first;
    for (int token = first + 1; token < end; ++token) {
      refused_token_ = largest(token) > largest(refused_token_) ? token : refused_token_;
    }
    return false;
  }

  [[nodiscard]] std::size_t index(int slot, int d) const {
    return static_cast<std::size_t>(slot) * static_cast<std::size_t>(shape_.dim) +
           static_cast<std::size_t>(d);
  }

  // Packs codes that lie `step` apart into one word.
  [[nodiscard]] std::uint32_t word_of(const std::uint8_t* codes, std::size_t step) const {
    const int pack = tensor::kv_pack(to_.format, to_.dtype), bits = 32 / pack;
    std::uint32_t word = 0;
    for (int i = 0; i < pack; ++i, codes += step) {
      word |= std::uint32_t{*codes} << (bits * tensor::code_place(pack, i));
    }
    return word;
  }

  void pack_keys(std::byte* out) const {
    const int pack = tensor::kv_pack(to_.format, to_.dtype);
    for (int d = 0; d < shape_.dim; d += pack) {
      for (int slot = 0; slot < shape_.slots; ++slot, out += kWordBytes) {
        const std::uint32_t word = word_of(&k_.codes[index(slot, d)], 1);
        std::memcpy(out, &word, sizeof(word));
      }
    }
  }

  void pack_values(std::byte* out) const {
    const int pack = tensor::kv_pack(to_.format, to_.dtype);
    for (int slot = 0; slot < shape_.slots; slot += pack) {
      for (int d = 0; d < shape_.dim; ++d, out += kWordBytes) {
        const std::uint32_t word =
            word_of(&v_.codes[index(slot, d)], static_cast<std::size_t>(shape_.dim));
        std::memcpy(out, &word, sizeof(word));
      }
    }
  }

  void add_block_errors(int head, BlockPair blocks, KVErrorSums& errors) {
    const auto size = static_cast<std::size_t>(shape_.head_dim);
    load(head, blocks.from);
    for (int token = 0; token < shape_.tokens; ++token) {
      add_errors(to_, head, {blocks.to, token},
                 std::span(k_.numbers).subspan(index(token, 0), size),
                 std::span(v_.numbers).subspan(index(token, 0), size), errors);
    }
  }

  tensor::PagedKVView from_, to_;
  HeadShape shape_;
  std::size_t scales_at_, head_bytes_;
  std::vector<std::byte> encoded_;  // [heads][head_bytes_]
  HeadPart k_, v_;
  int refused_token_ = 0;
};

// Stores one head of a token in a plain view. `T`: an element.
template <class T, class Round>
void store_plain(const tensor::PagedKVView& to, int head, tensor::KVSlot slot,
                 std::span<const float> k, std::span<const float> v, Round round) {
  const PlainSlot<T> place = plain_slot<T>(to, head, slot);
  for (std::size_t d = 0; d < k.size(); ++d) {
    place.key(static_cast<std::ptrdiff_t>(d)) = round(k[d]);
    place.value(static_cast<std::ptrdiff_t>(d)) = round(v[d]);
  }
}

void open_slot(const tensor::PagedKVView& from, tensor::KVSlot source, int head_dim,
               const tensor::PagedKVView& to, tensor::KVSlot target) {
  std::array<float, kMaxHeadDim> k = {}, v = {};
  const auto size = static_cast<std::size_t>(head_dim);
  const auto stored = static_cast<std::size_t>(to.head_dim);
  const std::span<const float> keys = std::span(k).first(stored),
                               values = std::span(v).first(stored);
  for (int head = 0; head < to.kv_heads; ++head) {
    read_key(from, head, source, std::span(k).first(size));
    read_value(from, head, source, std::span(v).first(size));
    switch (to.dtype) {
      case tensor::DType::kFloat32:
        store_plain<float>(to, head, target, keys, values, [](float x) { return x; });
        break;
      case tensor::DType::kBFloat16:
        store_plain<std::uint16_t>(to, head, target, keys, values, tensor::float_to_bf16);
        break;
      case tensor::DType::kFloat16:
        store_plain<std::uint16_t>(to, head, target, keys, values, [](float x) {
          return tensor::float_to_fp16(std::clamp(x, -kLargestFp16, kLargestFp16));
        });
        break;
    }
  }
}

void check(std::span<const BlockPair> blocks, int head_dim, const tensor::PagedKVView& from,
           const tensor::PagedKVView& to) {
  QUIRE_CHECK(!from.on_device && !to.on_device, "blocks of a GPU are sealed there");
  QUIRE_CHECK(from.kv_heads == to.kv_heads && from.head_dim == to.head_dim &&
                  from.block_tokens == to.block_tokens,
              "views differ in more than format and blocks");
  QUIRE_CHECK(head_dim >= 1 && head_dim <= to.head_dim && to.head_dim <= kMaxHeadDim &&
                  to.head_dim - head_dim < tensor::kInt4GroupChannels,
              "the head is not the views'");
  for (const tensor::PagedKVView& view : {from, to}) {
    QUIRE_CHECK(
        view.format != tensor::KVFormat::kInt4 || view.block_tokens % tensor::kInt4RunTokens == 0,
        "int4 needs blocks of whole runs of 32 tokens");
  }
  for (const BlockPair& pair : blocks) {
    QUIRE_CHECK(
        pair.from >= 0 && pair.from < from.num_blocks && pair.to >= 0 && pair.to < to.num_blocks,
        "a block outside of the view");
  }
}

std::int64_t block_cost(const tensor::PagedKVView& view) {
  return kSealCost * view.kv_heads * view.head_dim * view.block_tokens;
}

}  // namespace

bool seal_blocks(const KernelContext& context, const SealParams& params,
                 const tensor::PagedKVView& from, const tensor::PagedKVView& to) {
  check(params.blocks, params.head_dim, from, to);
  QUIRE_CHECK(!tensor::is_written_by_block(from.format) && tensor::is_written_by_block(to.format),
              "blocks of numbers or int8 become fp8 or int4");
  QUIRE_CHECK(params.refused.empty() || params.refused.size() == params.blocks.size(),
              "a flag for every block, or none");
  QUIRE_CHECK(params.errors.empty() || params.errors.size() == params.blocks.size(),
              "errors of every block, or of none");
  std::vector<std::uint8_t> held(params.blocks.size());
  parallel_ranges(context, std::ssize(params.blocks), block_cost(to),
                  [&](std::int64_t first, std::int64_t last) {
                    BlockSealer sealer(from, to, params.head_dim);
                    for (std::int64_t i = first; i < last; ++i) {
                      const auto at = static_cast<std::size_t>(i);
                      held[at] = sealer.seal(params.blocks[at],
                                             params.errors.empty() ? nullptr : &params.errors[at])
                                     ? 1
                                     : 0;
                      if (held[at] == 0 && !params.refused.empty()) {
                        params.refused[at] =
                            refusal_of(to.block_tokens - 1 - sealer.refused_token());
                      }
                    }
                  });
  return std::ranges::all_of(held, [](std::uint8_t flag) { return flag != 0; });
}

void open_blocks(const KernelContext& context, std::span<const BlockPair> blocks, int head_dim,
                 const tensor::PagedKVView& from, const tensor::PagedKVView& to) {
  check(blocks, head_dim, from, to);
  QUIRE_CHECK(to.format == tensor::KVFormat::kPlain, "blocks become blocks of numbers");
  parallel_ranges(context, std::ssize(blocks), block_cost(to),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const BlockPair pair = blocks[static_cast<std::size_t>(i)];
                      for (int token = 0; token < to.block_tokens; ++token) {
                        open_slot(from, {pair.from, token}, head_dim, to, {pair.to, token});
                      }
                    }
                  });
}

}  // namespace quire::kernels
