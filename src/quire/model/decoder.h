// Decoder: the transformer that all families share; what differs is data (ModelConfig) and tensor
// names. Holds packed weights; owns no KV.
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

#include "quire/attention/plan.h"
#include "quire/base/mapped_file.h"
#include "quire/device/accelerator.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/context.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/weights/checkpoint.h"

namespace quire::model {

// Where a decoder computes.
struct Placement {
  device::Accelerator* accelerator = nullptr;  // outlives the decoder; null: the CPU
  bool deterministic = true;                   // as make_device_upload
  // What takes the place of the CPU's backend, which it is given: for tests.
  std::function<std::unique_ptr<DecoderBackend>(std::unique_ptr<DecoderBackend>)> instead;
};

struct LoadOptions {
  kernels::WeightFormat format = kernels::WeightFormat::kBf16;  // of all matrices
  // But those that the checkpoint has quantised are computed from their own codes (loader.h).
  bool keep_codes = false;
  std::function<void(double share)> progress;  // 0..1, from the loading thread
  // Gets the weights instead of the result.
  WeightSink* sink = nullptr;
};

struct LoadReport {
  std::int64_t bytes_read = 0;  // of the checkpoint; 0 for random or mapped weights
  double seconds = 0;
  std::int64_t packed_bytes = 0;  // of all weights
  std::int64_t mapped_bytes = 0;  // of those, what lies packed in a file that is mapped
  std::int64_t layer_bytes = 0;   // matrices of the layers, which every step reads
  std::int64_t head_bytes = 0;
  // Of the layers' matrices, the format that most bytes are in.
  kernels::WeightFormat main_format = kernels::WeightFormat::kBf16;
  [[nodiscard]] double gigabytes_per_second() const {
    return seconds > 0 ? static_cast<double>(bytes_read) / seconds * 1e-9 : 0.0;
  }
};

// Weights that somebody has packed before.
struct MappedWeights {
  base::MappedFile file;                   // what the bytes of the parts lie in
  std::vector<kernels::PackedPart> parts;  // as Decoder::packed_parts has given them
  std::string digest;                      // as Decoder::weights_digest has
};

class Decoder {
 public:
  // Packs every tensor of the checkpoint. An unknown, missing or wrongly shaped tensor is an error
  // that names it (loader.h). The checkpoint is not needed afterwards. To an accelerator weights go
  // matrix by matrix, so the host has room for the largest and no more; errors of
  // make_device_upload.
  [[nodiscard]] static Result<Decoder> load(const kernels::Context& context,
                                            const ModelConfig& config,
                                            const weights::Checkpoint& checkpoint,
                                            const LoadOptions& options,
                                            const Placement& placement = {});
  // On the CPU, from matrices where they lie in the file: nothing is packed, nor read before it is
  // used. kCorrupt when the parts are not those of the config.
  [[nodiscard]] static Result<Decoder> map(const kernels::Context& context,
                                           const ModelConfig& config, MappedWeights weights);
  // Random weights of the config's shape, seeded, for benchmarks.
  [[nodiscard]] static Result<Decoder> random(const kernels::Context& context,
                                              const ModelConfig& config,
                                              kernels::WeightFormat format, std::uint64_t seed,
                                              const Placement& placement = {});

  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  // Stores the KV of all rows and returns logits fp32 [logit_rows.size(), vocab_size], valid until
  // the next call. kv: one view per layer. A row's logits depend, to the bit, on its token, its
  // positions and what its entries show; not on the other rows of the batch. Preconditions
  // (QUIRE_CHECK): ids in the vocabulary, slots inside the views, spans of matching lengths.
  // `probe` may be null; a pass that it ends early gives no logits.
  // Fails, with kDevice or kOutOfBlocks, on an accelerator only.
  [[nodiscard]] Result<std::span<float>> forward(const ForwardBatch& batch,
                                                 std::span<const tensor::PagedKVView> kv,
                                                 ForwardProbe* probe = nullptr);

  // The same in two calls: launch gives the device its work and needs the batch no longer, await
  // waits for the step launched first and returns what forward would. A second step may be launched
  // before the first is awaited, no third; it is computed behind the first, whose logits are then
  // gone. A launch that fails leaves those before it alone. The CPU computes in launch.
  [[nodiscard]] Status launch(const ForwardBatch& batch, std::span<const tensor::PagedKVView> kv);
  [[nodiscard]] Result<std::span<float>> await();
  // Waits for what was launched, and forgets it.
  void abandon();
  // Whether tokens can be chosen where the logits are, so that a second step can be launched.
  [[nodiscard]] bool chooses() const;

  // Of the rows of logits of the last forward or await the token that was chosen for each by its
  // Choice, or -1: then, and only then, its logits are there, if no step was launched behind. Empty
  // when none was: the CPU leaves it to its caller.
  [[nodiscard]] std::span<const TokenId> last_chosen() const;
  // Of such a row with a token, if its Choice asks for log probabilities: that token's, then those
  // of the most likely ones, most likely first, as many as it asks for or the vocabulary has. What
  // follows means nothing.
  [[nodiscard]] std::span<const kernels::TokenLogprob> last_logprobs(std::size_t row) const;

  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] const LoadReport& load_report() const;
  // Of the last forward; or of all calls since the await before the last.
  [[nodiscard]] ForwardTiming last_timing() const;
  // The same, summed over layers.
  [[nodiscard]] attention::PlanCounters last_counters() const;
  // SHA-256 over config, weight formats and the SHA-256 of pieces of the weights as packed: part of
  // every KV identity. The first call reads all weights with threads of its own (about 1.5 s per 2
  // GB and thread), also while others compute; later ones are free, as are all of mapped weights
  // and on an accelerator.
  [[nodiscard]] std::string weights_digest() const;
  // All weights where they lie, first to last; valid while the decoder lives. None on an
  // accelerator.
  [[nodiscard]] std::vector<kernels::PackedPart> packed_parts() const;

 private:
  struct Impl;
  explicit Decoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::model
