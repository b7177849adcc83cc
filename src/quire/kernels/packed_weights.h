// Weight matrices W [columns = outputs, depth = inputs] in the one layout that GEMV, GEMM and every
// instruction set read.
//
//   panel  32 outputs; panels follow each other
//   step   32 inputs of a panel; the steps of a panel follow each other, so a panel is one stream
//   tile   16 outputs of a step; two per step
//
//   f32    step = [32 inputs][32 outputs]                                         4096 bytes
//   bf16   step = 2 tiles x [16 pairs][16 outputs][2]                             2048 bytes
//   fp16   as bf16; only a GPU computes with it
//   fp8    a panel begins with 32 fp32 scales, of whole outputs; step = 2 tiles x [8 quads][16
//          outputs][4] of e4m3; only a GPU computes with it                       1024 bytes
//   q8g32  step = 32 fp16 scales, 2 tiles x [8 quads][16 outputs][4] of w + 128   1088 bytes
//   q4g32  step = 32 fp16 scales, 2 tiles x [4][16 outputs][4] of two (w + 8)      576 bytes
//          (low nibbles: quads 0..3, high nibbles: quads 4..7)
//   q4m32  step = 32 fp16 scales, 32 fp16 minimums, tiles as in q4g32 with plain codes: weight =
//          scale * code + minimum                                                 640 bytes
//   t4g32  a panel begins with a table of 16 bytes (w + 128), padded to 64; step = 32 fp32 scales,
//          tiles as in q4g32 with places in the table                             640 bytes
//   t4g16  head as in t4g32; step = 32 fp32 scales, then 32 int8 multiples of them for the first 16
//          inputs and 32 for the others, tiles as in t4g32                        704 bytes
//   q2m16  step = 32 fp16 scales, 32 fp16 minimums, int8 multiples of the scales as in t4g16, the
//          same of the minimums, 2 tiles x [2][16 outputs][4] of four codes (lowest bits: quads 0
//          and 1, and so on): weight = scale * multiple * code + minimum * multiple 512 bytes
//
// Outputs and inputs are padded with zero weights to multiples of 32. A row of a tile is 64 bytes:
// one AVX-512 register, two AVX2 registers, one row of an AMX tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "quire/device/arena.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/weight_format.h"  // IWYU pragma: export
#include "quire/tensor/code_rows.h"

namespace quire::kernels {

// The version of the layouts above and of the rules of packing. A change of either raises it, so
// that packed weights of another version are recognised. All instruction sets share layouts and
// rules.
inline constexpr std::uint32_t kPackingVersion = 1;

// Returns "float32", "bfloat16", "q8g32", "q4g32", "q4m32", "t4g32", "t4g16", "q2m16", "float16" or
// "fp8".
[[nodiscard]] const char* format_name(WeightFormat format);

inline constexpr std::int64_t kMaxPackedSize = std::int64_t{1} << 30;
// Returns the bytes of a packed matrix, or nullopt unless both sizes are 1 to kMaxPackedSize.
[[nodiscard]] std::optional<std::int64_t> packed_bytes(WeightFormat format, std::int64_t columns,
                                                       std::int64_t depth);

// Fills out [num_rows, depth] with rows [first_row, first_row + num_rows) of W in fp32. Called from
// several threads at once.
using RowSource =
    std::function<void(std::int64_t first_row, std::int64_t num_rows, std::span<float> out)>;

// Quantised rows of W. Called from several threads at once.
struct CodeSource {
  // Fills `out` with rows in codes of the packed format. These are w + 128, w + 8, places in the
  // table, or plain codes if the format has a minimum.
  std::function<void(std::int64_t first_row, std::int64_t num_rows, const tensor::CodeRows& out)>
      read;
  tensor::CodeTable table = {};  // weights that places name, above -128
};

// A packed matrix. Owns its bytes, or views bytes that outlive it. Move only. Columns and depth are
// at least 1.
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(PackedWeights&&) noexcept = default;
  PackedWeights& operator=(PackedWeights&&) noexcept = default;
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;
  ~PackedWeights() = default;
  // Makes zero weights of shape [columns, depth]. When the system has no memory for them, data() is
  // null.
  PackedWeights(WeightFormat format, std::int64_t columns, std::int64_t depth);

  // Packs rows as `source` gives them, panel by panel on all threads of the pool. Quantised formats
  // use the rules of GGUF Q8_0 (scale = amax / 127) and Q4_0 (scale = value of largest magnitude /
  // -8). So blocks of such files move over losslessly. fp8 has scale = amax / 448 of each row. For
  // t4g32, t4g16 and q2m16 small_codes.h has the rules.
  // Without memory `source` is not called and data() is null. With an arena they lie there, beside
  // others.
  [[nodiscard]] static PackedWeights pack(const KernelContext& context, WeightFormat format,
                                          std::int64_t columns, std::int64_t depth,
                                          const RowSource& source, device::Arena* arena = nullptr);

  // Moves rows that are codes already, unchanged; for the quantised formats of the CPU.
  // Precondition: depth is a multiple of 32.
  [[nodiscard]] static PackedWeights pack_codes(const KernelContext& context, WeightFormat format,
                                                std::int64_t columns, std::int64_t depth,
                                                const CodeSource& source,
                                                device::Arena* arena = nullptr);

  // Returns a view of weights that lie packed in `bytes`. Precondition: `bytes` has the size of
  // packed_bytes() and is aligned to 64 bytes.
  [[nodiscard]] static PackedWeights view(WeightFormat format, std::int64_t columns,
                                          std::int64_t depth, std::span<const std::byte> bytes);

  // Returns a copy that owns its bytes. data() is null without memory for it.
  [[nodiscard]] PackedWeights clone() const;

  // Writes row `column` of W as the kernels see it, fp32 [depth], for embeddings of tied weights.
  // Any thread. Cost: O(depth).
  void unpack_row(std::int64_t column, std::span<float> out) const;

  [[nodiscard]] WeightFormat format() const { return format_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  [[nodiscard]] std::int64_t depth() const { return depth_; }
  [[nodiscard]] std::int64_t panels() const {
    return (columns_ + kPanelColumns - 1) / kPanelColumns;
  }
  [[nodiscard]] std::int64_t steps() const { return (depth_ + kStepDepth - 1) / kStepDepth; }
  [[nodiscard]] std::size_t panel_bytes() const {
    return static_cast<std::size_t>(panel_head_bytes(format_)) +
           static_cast<std::size_t>(steps()) * static_cast<std::size_t>(step_bytes(format_));
  }
  [[nodiscard]] std::size_t size_bytes() const {
    return panel_bytes() * static_cast<std::size_t>(panels());
  }
  [[nodiscard]] const std::byte* data() const {
    return viewed_ == nullptr ? owned_.get() : viewed_;
  }

 private:
  // Takes memory of its own if `arena` is null.
  void allocate(WeightFormat format, std::int64_t columns, std::int64_t depth,
                device::Arena* arena);

  WeightFormat format_ = WeightFormat::kF32;
  std::int64_t columns_ = 0;
  std::int64_t depth_ = 0;
  std::shared_ptr<std::byte> owned_;   // [panels][head, steps][step_bytes]
  const std::byte* viewed_ = nullptr;  // instead of owned_
};

}  // namespace quire::kernels
