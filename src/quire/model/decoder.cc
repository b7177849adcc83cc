#include "quire/model/decoder.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/base/check.h"
#include "quire/base/mapped_file.h"
#include "quire/base/sha256.h"
#include "quire/base/stopwatch.h"
#include "quire/base/str.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/cpu_backend.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/forward_batch.h"
#include "quire/model/state_maps.h"
#include "quire/model/weight_packer.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"
#include "quire/weights/model_files.h"

namespace quire::model {
namespace {

// Returns whether the runs of states cover the rows, one after the other, and then their branches.
bool states_fit(const ForwardBatch& batch) {
  std::int64_t rows = 0;
  for (const StateRun& run : batch.state_runs) {
    const bool there = run.to >= 0 && run.to < batch.states.num_states &&
                       run.from < batch.states.num_states && run.first_row == rows;
    if (!there) {
      return false;
    }
    rows += run.num_rows;
  }
  for (const StateRun& run : batch.state_runs) {
    for (const StateBranch& branch : run.branches) {
      if (branch.first_row != rows || run.num_assumed == 0) {
        return false;
      }
      rows += branch.num_rows;
    }
  }
  return rows == std::ssize(batch.token_ids);
}

// Returns the format that a row's KV is stored in: that of the block which it fills, if it does.
std::uint8_t stored_as(const ForwardBatch& batch, std::int32_t row) {
  const auto seal = std::ranges::find(batch.seals, row, &BlockSeal::last_row);
  if (seal != batch.seals.end()) {
    return seal->to_format;
  }
  return batch.slot_formats.empty() ? 0 : batch.slot_formats[static_cast<std::size_t>(row)];
}

// Says what a format cannot hold, and what to do. fp16 ends at 65504: so does a minimum of int4,
// its scale at 15 times that, and int8's at 127 times.
const char* beyond(tensor::KVFormat format, tensor::DType dtype) {
  switch (format) {
    case tensor::KVFormat::kPlain:
      break;
    case tensor::KVFormat::kInt8:
      return "a NaN, an infinity or a number beyond 8.3e6, which its fp16 scale ends at; use "
             "kv_dtype \"bfloat16\" for large numbers";
    case tensor::KVFormat::kFp8:
      return "a NaN, an infinity or a number of 3.4e38, which its fp32 scale ends at; use kv_dtype "
             "\"bfloat16\", or look into the model's weights";
    case tensor::KVFormat::kInt4:
      return "a NaN, an infinity, a number below -65504 or numbers over 9.8e5 apart in one group, "
             "which its fp16 minimum and scale end at; use kv_dtype \"bfloat16\" for large numbers";
  }
  return dtype == tensor::DType::kFloat32
             ? "a NaN or an infinity; look into the model's weights"
             : "a NaN or an infinity; look into the model's weights, or use dtype \"float32\"";
}

// Bytes of packed weights that are hashed at once; threads share the pieces.
constexpr std::size_t kHashedBytes = std::size_t{4} << 20;

// Hashes every weight that visit_weights shows, or that is taken.
class Digester final : public WeightSink {
 public:
  Digester(device::ThreadPool& pool, base::FieldHasher& hasher) : pool_(pool), hasher_(hasher) {}

  [[nodiscard]] Status take(const WeightId& /*id*/,
                            const kernels::PackedWeights& weights) override {
    const std::span bytes(weights.data(), weights.size_bytes());
    using Digest = std::array<std::uint8_t, 32>;
    std::vector<Digest> digests((bytes.size() + kHashedBytes - 1) / kHashedBytes);
    pool_.run(static_cast<int>(digests.size()), [&](int item, int /*thread*/) {
      const std::size_t first = static_cast<std::size_t>(item) * kHashedBytes;
      base::FieldHasher piece;
      piece.add_bytes(bytes.subspan(first, std::min(kHashedBytes, bytes.size() - first)));
      digests[static_cast<std::size_t>(item)] = piece.finish();
    });
    hasher_.add(kernels::format_name(weights.format()));
    hasher_.add_bytes(std::as_bytes(std::span(digests)));
    return {};
  }
  [[nodiscard]] Status take(const WeightId& /*id*/, const std::vector<float>& values) override {
    hasher_.add_bytes(std::as_bytes(std::span(values)));
    return {};
  }

  [[nodiscard]] Status matrix(const WeightId& id, const kernels::PackedWeights& weights,
                              std::int64_t /*columns*/, std::int64_t /*depth*/) {
    return take(id, weights);
  }
  [[nodiscard]] Status vector(const WeightId& id, const std::vector<float>& values,
                              std::int64_t /*size*/) {
    return take(id, values);
  }

 private:
  device::ThreadPool& pool_;
  base::FieldHasher& hasher_;
};

// Gives each weight to both.
class TwoSinks final : public WeightSink {
 public:
  TwoSinks(WeightSink& first, WeightSink& second) : first_(first), second_(second) {}
  [[nodiscard]] Status take(const WeightId& id, const kernels::PackedWeights& weights) override {
    QUIRE_TRY_STATUS(first_.take(id, weights));
    return second_.take(id, weights);
  }
  [[nodiscard]] Status take(const WeightId& id, const std::vector<float>& values) override {
    QUIRE_TRY_STATUS(first_.take(id, values));
    return second_.take(id, values);
  }

 private:
  WeightSink& first_;
  WeightSink& second_;
};

}  // namespace

struct Decoder::Impl {
  kernels::KernelContext context;
  ModelConfig config;
  base::MappedFile file;   // file in which mapped weights lie
  DecoderWeights weights;  // empty on an accelerator
  PackReport report;
  std::string digest;  // hexadecimal; empty until it is asked for
  std::unique_ptr<DecoderBackend> backend;

  // Makes a decoder of `config`. `fill(report, sink)` gives its weights, to the sink when there is
  // one.
  template <class Fill>
  static Result<Decoder> make(const kernels::KernelContext& context, const ModelConfig& config,
                              const Placement& placement, Fill&& fill);
  template <class Fill>
  [[nodiscard]] Status fill_accelerator(const Placement& placement, const Fill& fill);
  void check(const ForwardBatch& batch, std::size_t views) const;
};

Decoder::Decoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

template <class Fill>
Status Decoder::Impl::fill_accelerator(const Placement& placement, const Fill& fill) {
  QUIRE_TRY_STATUS(check_device_switches(config));
  QUIRE_TRY(const auto upload, make_device_upload(*placement.accelerator, config,
                                                  placement.deterministic, placement.dtype));
  base::FieldHasher hasher;
  add_config(hasher, config);
  Digester digester(*context.pool, hasher);
  TwoSinks sinks(digester, *upload);
  QUIRE_TRY([[maybe_unused]] const DecoderWeights nothing_is_left, fill(report, &sinks));
  digest = base::to_hex(hasher.finish());
  QUIRE_TRY(backend, upload->finish());
  return {};
}

template <class Fill>
Result<Decoder> Decoder::Impl::make(const kernels::KernelContext& context,
                                    const ModelConfig& config, const Placement& placement,
                                    Fill&& fill) {
  QUIRE_TRY_STATUS(config.validate());
  const auto start = std::chrono::steady_clock::now();
  auto impl = std::make_unique<Impl>();
  impl->context = context;
  impl->config = config;
  if (placement.accelerator != nullptr) {
    QUIRE_TRY_STATUS(impl->fill_accelerator(placement, fill));
  } else {
    QUIRE_TRY(impl->weights, fill(impl->report, nullptr));
    impl->backend = make_cpu_backend(context, impl->config, impl->weights);
    if (placement.instead) {
      impl->backend = placement.instead(std::move(impl->backend));
    }
  }
  impl->report.seconds = base::seconds_since(start);
  return Decoder(std::move(impl));
}

void Decoder::Impl::check(const ForwardBatch& batch, std::size_t views) const {
  const std::size_t rows = batch.token_ids.size();
  QUIRE_CHECK(views == static_cast<std::size_t>(config.kv_layers()) * batch.num_formats,
              "one KV view per layer and format");
  QUIRE_CHECK(config.mixers.empty() || states_fit(batch), "every row is in one run of states");
  QUIRE_CHECK(batch.slot_formats.empty() || batch.slot_formats.size() == rows,
              "a format for every slot, or none");
  QUIRE_CHECK(batch.positions.size() == rows && batch.slots.size() == rows,
              "a position and a slot per row");
  QUIRE_CHECK(batch.ids_from.empty() || (backend->chooses() && batch.ids_from.size() == rows),
              "tokens come from where they were chosen");
  for (const TokenId id : batch.token_ids) {
    QUIRE_CHECK(id >= 0 && id < config.vocab_size, "token ids were checked by the engine");
  }
  for (const std::int32_t row : batch.logit_rows) {
    QUIRE_CHECK(row >= 0 && static_cast<std::size_t>(row) < rows, "logit rows lie in the batch");
  }
}

Result<std::span<float>> Decoder::forward(const ForwardBatch& batch,
                                          std::span<const tensor::PagedKVView> kv,
                                          ForwardProbe* probe) {
  impl_->check(batch, kv.size());
  QUIRE_TRY(const std::span<float> logits, impl_->backend->forward(batch, kv, probe));
  const std::span<const std::uint8_t> refused = last_refused();
  for (std::size_t row = 0; row < refused.size(); ++row) {
    if (refused[row] != 0) {
      const std::uint8_t format = stored_as(batch, static_cast<std::int32_t>(row));
      const tensor::PagedKVView& view =
          kv[format * static_cast<std::size_t>(impl_->config.kv_layers())];
      return kv_refused(std::int64_t{batch.positions[row]} - (refused[row] - 1), view.format,
                        view.dtype);
    }
  }
  return logits;
}

std::span<const std::uint8_t> Decoder::last_refused() const {
  return impl_->backend->last_refused();
}

Error kv_refused(std::int64_t token, tensor::KVFormat format, tensor::DType dtype) {
  return {ErrorCode::kUnsupported,
          base::str_cat("kv_dtype \"", tensor::kv_format_name(format, dtype),
                        "\" cannot hold the keys or values of token ", token, ": they have ",
                        beyond(format, dtype))};
}

Status Decoder::apply_maps(std::span<const std::byte> packed, bool is_first,
                           std::span<std::byte> state) const {
  return model::apply_maps(impl_->context, impl_->config, packed, is_first, state);
}

Status Decoder::launch(const ForwardBatch& batch, std::span<const tensor::PagedKVView> kv) {
  impl_->check(batch, kv.size());
  return impl_->backend->launch(batch, kv);
}

Result<std::span<float>> Decoder::await() { return impl_->backend->await(); }
void Decoder::abandon() { impl_->backend->abandon(); }
void Decoder::advance_states(std::span<const RightRows> right) {
  impl_->backend->advance_states(right);
}
bool Decoder::chooses() const { return impl_->backend->chooses(); }

std::span<const TokenId> Decoder::last_chosen() const { return impl_->backend->last_chosen(); }

std::span<const kernels::TokenLogprob> Decoder::last_logprobs(std::size_t row) const {
  return impl_->backend->last_logprobs(row);
}

Result<Decoder> Decoder::open(const kernels::KernelContext& context, const ModelConfig& config,
                              const weights::ModelFiles& model_files, const PackOptions& options,
                              const Placement& placement) {
  return Impl::make(context, config, placement, [&](PackReport& report, WeightSink* sink) {
    PackOptions with_sink = options;
    with_sink.sink = sink;
    return pack_weights(context, config, model_files, with_sink, report);
  });
}

Result<Decoder> Decoder::map(const kernels::KernelContext& context, const ModelConfig& config,
                             MappedWeights weights) {
  QUIRE_TRY(Decoder decoder, Impl::make(context, config, {}, [&](PackReport& report, WeightSink*) {
              return view_weights(config, weights.parts, report);
            }));
  decoder.impl_->file = std::move(weights.file);
  decoder.impl_->digest = std::move(weights.digest);
  return decoder;
}

Result<Decoder> Decoder::random(const kernels::KernelContext& context, const ModelConfig& config,
                                kernels::WeightFormat format, std::uint64_t seed,
                                const Placement& placement) {
  return Impl::make(context, config, placement, [&](PackReport& report, WeightSink* sink) {
    return random_weights(context, config, {.format = format, .sink = sink}, seed, report);
  });
}

const ModelConfig& Decoder::config() const { return impl_->config; }
const PackReport& Decoder::pack_report() const { return impl_->report; }
attention::PlanCounters Decoder::last_counters() const { return impl_->backend->last_counters(); }
ForwardTiming Decoder::last_timing() const { return impl_->backend->last_timing(); }

std::vector<kernels::PackedPart> Decoder::packed_parts() const {
  return impl_->weights.layers.empty() ? std::vector<kernels::PackedPart>()
                                       : packed_parts_of(impl_->config, impl_->weights);
}

std::string Decoder::weights_digest() const {
  if (impl_->digest.empty()) {
    base::FieldHasher hasher;
    add_config(hasher, impl_->config);
    device::ThreadPool pool(impl_->context.pool->threads());  // the context's may be computing
    Digester digester(pool, hasher);
    (void)visit_weights(impl_->config, std::as_const(impl_->weights), digester);  // never fails
    impl_->digest = base::to_hex(hasher.finish());
  }
  return impl_->digest;
}

}  // namespace quire::model
