// Decoder: the transformer that all families share. Families differ in data (ModelConfig) and
// tensor names. It owns packed weights and no KV.
//
// Thread rule: one forward at a time per decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/base/mapped_file.h"
#include "quire/device/accelerator.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/forward_batch.h"
#include "quire/model/pack_options.h"  // IWYU pragma: export
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// The place where a decoder computes.
struct Placement {
  device::Accelerator* accelerator = nullptr;  // outlives the decoder; null: the CPU
  bool deterministic = true;                   // passed to make_device_upload, and so is dtype
  tensor::DType dtype = tensor::DType::kBFloat16;
  // For tests: makes the backend that replaces the CPU's, which it is given.
  std::function<std::unique_ptr<DecoderBackend>(std::unique_ptr<DecoderBackend>)> instead;
};

// Weights that an earlier start has packed.
struct MappedWeights {
  base::MappedFile file;                   // holds the bytes of the parts
  std::vector<kernels::PackedPart> parts;  // from Decoder::packed_parts
  std::string digest;                      // from Decoder::weights_digest
};

class Decoder {
 public:
  // Packs every tensor of the model files, which are not needed afterwards. An unknown, missing or
  // wrongly shaped tensor is an error that names it (weight_packer.h). Weights go to an accelerator
  // matrix by matrix, so the host never holds them all; the call then fails as make_device_upload
  // does too.
  [[nodiscard]] static Result<Decoder> open(const kernels::KernelContext& context,
                                            const ModelConfig& config,
                                            const weights::ModelFiles& model_files,
                                            const PackOptions& options,
                                            const Placement& placement = {});
  // Makes a decoder on the CPU whose matrices stay where they lie in the file. Packs nothing, and
  // reads nothing before its use. Fails with kCorrupt if the parts do not fit the config.
  [[nodiscard]] static Result<Decoder> map(const kernels::KernelContext& context,
                                           const ModelConfig& config, MappedWeights weights);
  // Makes a decoder with seeded random weights of the config's shape, for benchmarks.
  [[nodiscard]] static Result<Decoder> random(const kernels::KernelContext& context,
                                              const ModelConfig& config,
                                              kernels::WeightFormat format, std::uint64_t seed,
                                              const Placement& placement = {});

  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  // Stores the KV of all rows and returns logits fp32 [logit_rows.size(), vocab_size], valid until
  // the next call. `kv` has one view for each layer, of each of the batch's formats:
  // [formats][layers]. The bits of a row's logits depend on its token, its positions and the KV
  // that its entries show, not on other rows. Preconditions (QUIRE_CHECK): ids in the vocabulary,
  // slots inside the views, spans of matching lengths. `probe` may be null; a pass that it ends
  // early gives no logits. Fails with kUnsupported where the format of KV cannot hold a row's; with
  // kDevice or kOutOfBlocks, on an accelerator only.
  [[nodiscard]] Result<std::span<float>> forward(const ForwardBatch& batch,
                                                 std::span<const tensor::PagedKVView> kv,
                                                 ForwardProbe* probe = nullptr);

  // Does the first half of forward(): gives the device its work, and needs the batch no longer.
  // await() waits for the step launched first and returns its logits. One more step may be launched
  // before the first is awaited; it is computed behind the first, whose logits are gone then. A
  // launch that fails leaves earlier ones alone. The CPU computes in launch().
  [[nodiscard]] Status launch(const ForwardBatch& batch, std::span<const tensor::PagedKVView> kv);
  [[nodiscard]] Result<std::span<float>> await();
  // Waits for all launched steps and forgets their results.
  void abandon();
  // Advances the states behind the last forward or await by assumed rows that are right. The bits
  // are those of a pass in which the rows were certain. Allocates nothing. Precondition: a run
  // comes once.
  void advance_states(std::span<const RightRows> right);
  // Returns true if the backend chooses tokens itself, so that a second step can be launched.
  [[nodiscard]] bool chooses() const;

  // Returns the token that was chosen for each row of logits of the last forward or await, or -1.
  // The logits of a row exist only for -1, and only if no step was launched behind. Empty if the
  // backend chooses no tokens, as the CPU's.
  [[nodiscard]] std::span<const TokenId> last_chosen() const;
  // Returns log probabilities of a row with a chosen token whose Choice asks for them. The token's
  // comes first, then those of the most likely ones in order. Elements behind the number asked for,
  // or behind the size of the vocabulary, mean nothing.
  [[nodiscard]] std::span<const kernels::TokenLogprob> last_logprobs(std::size_t row) const;

  // Returns, for each row of the last await, 0 where the format of KV holds what the row stored.
  // Else it is n, where keys or values of the token n - 1 before the row's are not held. A row that
  // fills a block stores all of it. Returns nothing where all is held. Plain numbers are watched on
  // the CPU alone. KV of such a row means nothing.
  [[nodiscard]] std::span<const std::uint8_t> last_refused() const;

  // Makes `state` the one behind a chunk, by its packed maps (state_maps.h). On the CPU alone.
  [[nodiscard]] Status apply_maps(std::span<const std::byte> packed, bool is_first,
                                  std::span<std::byte> state) const;

  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] const PackReport& pack_report() const;
  // Returns the times of the last forward, or of all calls since the await before the last.
  [[nodiscard]] ForwardTiming last_timing() const;
  // Returns counters of the same calls, summed over layers.
  [[nodiscard]] attention::PlanCounters last_counters() const;
  // Returns a SHA-256 over config, weight formats and packed weights, which is a part of every KV
  // identity. Cost: the first call reads all weights with threads of its own, also during a pass.
  // Later calls are free, and so are all calls for mapped weights and on an accelerator.
  [[nodiscard]] std::string weights_digest() const;
  // Returns all weights where they lie, valid while the decoder lives. Empty on an accelerator.
  [[nodiscard]] std::vector<kernels::PackedPart> packed_parts() const;

 private:
  struct Impl;
  explicit Decoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Returns the error of a token whose keys or values a format of KV cannot hold. `dtype` is the type
// that they are computed in.
[[nodiscard]] Error kv_refused(std::int64_t token, tensor::KVFormat format, tensor::DType dtype);

}  // namespace quire::model
