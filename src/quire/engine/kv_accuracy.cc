#include "quire/engine/kv_accuracy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/engine/bundle_options.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/open_format.h"
#include "quire/engine/own_kv.h"
#include "quire/interrupt.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::size_t kSliceTokens = 128;   // computed between two steps of the engine
constexpr std::size_t kRowsPerSample = 16;  // of which one is asked for its attention

// Returns the tokens of a block: scales and open rows of some formats depend on them.
std::int32_t block_tokens_of(Engine& engine) {
  return engine.core().paged_pool.geometry().block_tokens;
}

Result<tensor::KVGeometry> geometry_of(Engine& engine, const std::string& kv_dtype) {
  const tensor::DType compute = engine.bundle().dtype;
  const std::int32_t block_tokens = block_tokens_of(engine);
  if (const auto coded = coded_kv_format(kv_dtype)) {
    QUIRE_TRY_STATUS(
        check_kv_format(engine.model_config(), *coded, engine.accelerator() != nullptr));
    const auto geometry = engine.model_config().kv_geometry(compute, block_tokens, *coded);
    QUIRE_TRY_STATUS(check_block_tokens(geometry));
    return geometry;
  }
  for (const tensor::DType dtype : {tensor::DType::kFloat32, tensor::DType::kBFloat16}) {
    if (kv_dtype == tensor::dtype_name(dtype)) {
      return engine.model_config().kv_geometry(dtype, block_tokens, tensor::KVFormat::kPlain);
    }
  }
  const bool known = kv_dtype == "float16";
  return {
      known ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
      base::str_cat("kv_dtype ", base::quoted(kv_dtype), known ? " is not there" : " is unknown",
                    "; the accuracy of float32, bfloat16, int8, fp8 and int4 can be measured")};
}

// Squares of errors and of what they are errors of.
struct SquareSums {
  double error = 0;
  double whole = 0;
  void add(std::span<const float> got, std::span<const float> want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double difference = double{got[i]} - double{want[i]};
      error += difference * difference;
      whole += double{want[i]} * double{want[i]};
    }
  }
  [[nodiscard]] double relative() const { return whole > 0 ? std::sqrt(error / whole) : 0; }
};

// Returns the logarithm of the sum of exponentials.
double log_sum(std::span<const double> x) {
  const double top = *std::ranges::max_element(x);
  double sum = 0;
  for (const double value : x) {
    sum += std::exp(value - top);
  }
  return top + std::log(sum);
}

// Returns KL(softmax(p), softmax(q)).
double divergence(std::span<const double> p, std::span<const double> q) {
  const double p_sum = log_sum(p), q_sum = log_sum(q);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_sum;
    sum += std::exp(log_p) * (log_p - (q[i] - q_sum));
  }
  return std::max(sum, 0.0);  // rounding may leave less
}

LayerErrors errors_of(std::span<const SquareSums> sums) {
  LayerErrors errors;
  for (const SquareSums& layer : sums) {
    errors.layers.push_back(layer.relative());
    errors.max = std::max(errors.max, errors.layers.back());
    errors.mean += errors.layers.back() / static_cast<double>(sums.size());
  }
  return errors;
}

// Runs both over the ids, slice by slice. Engine thread, but for construction and result().
class Comparison {
 public:
  Comparison(Engine& engine, std::span<const TokenId> ids, std::unique_ptr<OwnKV> reference,
             std::unique_ptr<OwnKV> stored, std::unique_ptr<OwnKV> rounded)
      : engine_(engine),
        ids_(ids),
        reference_(std::move(reference)),
        stored_(std::move(stored)),
        rounded_(std::move(rounded)),
        keys_(static_cast<std::size_t>(engine.model_config().kv_layers())),
        values_(keys_.size()) {}

  Status compare_slice(std::size_t first, std::size_t count);
  [[nodiscard]] KVAccuracy result() const;

 private:
  struct Slice {
    std::size_t first, count;
  };
  // Returns the logits of all rows.
  Result<std::span<float>> forward(OwnKV& kv, Slice slice, model::ForwardProbe* probe);
  [[nodiscard]] model::LayerPlan plan_of(const model::LayerQueries& queries) const {
    return engine_.model_config().layer_plan(static_cast<std::size_t>(queries.layer));
  }
  void compare_layer(Slice slice, const model::LayerQueries& queries);
  void round_keys_and_values(Slice slice, const model::LayerPlan& plan);
  void compare_attention(Slice slice, const model::LayerQueries& queries, int kv_head);
  void compare_logits(Slice slice, std::span<const float> want, std::span<const float> got);
  // Reads the keys of one head, [tokens][dim].
  struct Head {
    int layer = 0, kv_head = 0;
    std::size_t dim = 0;
  };
  void read_keys(const OwnKV& kv, Head head, std::size_t tokens, std::vector<float>& out) const;

  Engine& engine_;
  std::span<const TokenId> ids_;
  std::unique_ptr<OwnKV> reference_;
  std::unique_ptr<OwnKV> stored_;          // what the format makes of the run
  std::unique_ptr<OwnKV> rounded_;         // what the format makes of the reference's KV
  std::vector<SquareSums> keys_, values_;  // [layers with KV]
  double attention_kl_ = 0;
  std::int64_t attention_rows_ = 0;
  std::vector<double> logit_kl_;  // [rows]
  std::int64_t same_best_ = 0;
  double want_nll_ = 0, got_nll_ = 0;
};

Result<std::span<float>> Comparison::forward(OwnKV& kv, Slice slice, model::ForwardProbe* probe) {
  QUIRE_TRY(const model::ForwardBatch batch, kv.next_batch(static_cast<std::int32_t>(slice.count)));
  return engine_.core().decoder().forward(batch, kv.views(batch.num_formats), probe);
}

Status Comparison::compare_slice(std::size_t first, std::size_t count) {
  const Slice slice = {first, count};
  const std::function<void(const model::LayerQueries&)> look =
      [&](const model::LayerQueries& queries) { compare_layer(slice, queries); };
  model::ForwardProbe probe = {.queries = &look};
  const auto tokens = static_cast<std::int32_t>(count);
  QUIRE_TRY([[maybe_unused]] const model::ForwardBatch rounds, rounded_->next_batch(tokens));
  QUIRE_TRY(const std::span<float> logits, forward(*reference_, slice, &probe));
  const std::vector<float> want(logits.begin(), logits.end());
  QUIRE_TRY(const std::span<float> got, forward(*stored_, slice, nullptr));
  compare_logits(slice, want, got);
  for (OwnKV* kv : {reference_.get(), stored_.get(), rounded_.get()}) {
    kv->advance(tokens);
  }
  return {};
}

void Comparison::compare_layer(Slice slice, const model::LayerQueries& queries) {
  const model::LayerPlan plan = plan_of(queries);
  if (plan.stores_kv) {
    round_keys_and_values(slice, plan);
  }
  for (int head = 0; head < plan.kv_heads; ++head) {
    compare_attention(slice, queries, head);
  }
}

void Comparison::round_keys_and_values(Slice slice, const model::LayerPlan& plan) {
  const int layer = plan.group_index;
  const auto kv_heads = static_cast<std::size_t>(plan.kv_heads);
  const auto dim = static_cast<std::size_t>(plan.head_dim);
  const std::size_t width = kv_heads * dim;
  std::vector<float> keys(slice.count * width), values(keys.size());
  std::vector<float> row(reference_->row_size(layer));
  const auto for_each_head = [&](const OwnKV& kv, const auto& fn) {
    for (std::size_t at = 0; at < slice.count * kv_heads; ++at) {
      const std::size_t token = slice.first + at / kv_heads;
      const auto head = static_cast<int>(at % kv_heads);
      kv.read_key(layer, head, token, row);
      fn(at, keys, keys_);
      kv.read_value(layer, head, token, row);
      fn(at, values, values_);
    }
  };
  for_each_head(*reference_, [&](std::size_t at, std::vector<float>& to, auto&) {
    std::copy_n(row.begin(), dim, to.begin() + static_cast<std::ptrdiff_t>(at * dim));
  });
  rounded_->store(engine_.context(), layer,
                  {.keys = keys, .values = values, .head_dim = static_cast<int>(dim)});
  for_each_head(*rounded_, [&](std::size_t at, const std::vector<float>& want, auto& sums) {
    sums[static_cast<std::size_t>(layer)].add(std::span(row).first(dim),
                                              std::span(want).subspan(at * dim, dim));
  });
}

void Comparison::read_keys(const OwnKV& kv, Head head, std::size_t tokens,
                           std::vector<float>& out) const {
  std::vector<float> row(kv.row_size(head.layer));
  out.resize(tokens * head.dim);
  for (std::size_t token = 0; token < tokens; ++token) {
    kv.read_key(head.layer, head.kv_head, token, row);
    std::copy_n(row.begin(), head.dim, out.begin() + static_cast<std::ptrdiff_t>(token * head.dim));
  }
}

// Compares, for some rows, the attention of one query over keys as they are and as stored.
void Comparison::compare_attention(Slice slice, const model::LayerQueries& queries, int kv_head) {
  const model::ModelConfig& config = engine_.model_config();
  const model::LayerPlan plan = plan_of(queries);
  const auto dim = static_cast<std::size_t>(plan.head_dim);
  std::vector<float> want_keys, got_keys, query(dim);
  const Head of = {.layer = plan.group_index, .kv_head = kv_head, .dim = dim};
  read_keys(*reference_, of, slice.first + slice.count, want_keys);
  read_keys(*rounded_, of, slice.first + slice.count, got_keys);
  const auto window =
      static_cast<std::size_t>(config.window_tokens[static_cast<std::size_t>(queries.layer)]);
  const double scale = config.score_scale(), cap = config.scales.score_cap;
  const int group = config.heads / plan.kv_heads;
  for (std::size_t row = 0; row < slice.count; row += kRowsPerSample) {
    const std::size_t end = slice.first + row + 1;
    const std::size_t begin = window > 0 && end > window ? end - window : 0;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto at =
          static_cast<std::size_t>(queries.stride) * row + static_cast<std::size_t>(head) * dim;
      kernels::rotate_head(engine_.context(), *queries.rotary, static_cast<std::int64_t>(row),
                           queries.q.subspan(at, dim), query);
      const auto scores = [&](const std::vector<float>& keys) {
        std::vector<double> out;
        for (std::size_t token = begin; token < end; ++token) {
          const float* key = &keys[token * dim];
          const double score = scale * std::inner_product(query.begin(), query.end(), key, 0.0);
          out.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
        }
        return out;
      };
      attention_kl_ += divergence(scores(want_keys), scores(got_keys));
      ++attention_rows_;
    }
  }
}

void Comparison::compare_logits(Slice slice, std::span<const float> want,
                                std::span<const float> got) {
  const std::size_t vocab = want.size() / slice.count;
  for (std::size_t row = 0; row < slice.count; ++row) {
    const auto of_row = want.subspan(row * vocab, vocab),
               of_other = got.subspan(row * vocab, vocab);
    const std::vector<double> p(of_row.begin(), of_row.end());
    const std::vector<double> q(of_other.begin(), of_other.end());
    logit_kl_.push_back(divergence(p, q));
    same_best_ +=
        std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1 : 0;
    const std::size_t next = slice.first + row + 1;
    if (next < ids_.size()) {
      const auto id = static_cast<std::size_t>(ids_[next]);
      want_nll_ += log_sum(p) - p[id];
      got_nll_ += log_sum(q) - q[id];
    }
  }
}

KVAccuracy Comparison::result() const {
  std::vector<double> sorted = logit_kl_;
  std::ranges::sort(sorted);
  const auto rows = static_cast<double>(sorted.size());
  const auto predicted = static_cast<double>(ids_.size() - 1);
  const auto last = static_cast<std::size_t>(std::ceil(0.99 * rows)) - 1;
  const double exact = std::exp(want_nll_ / predicted);
  return {.num_tokens = std::ssize(ids_),
          .key_error = errors_of(keys_),
          .value_error = errors_of(values_),
          .attention_kl = attention_kl_ / static_cast<double>(attention_rows_),
          .logit_kl_mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / rows,
          .logit_kl_p99 = sorted[last],
          .same_best = static_cast<double>(same_best_) / rows,
          .perplexity = std::exp(got_nll_ / predicted),
          .perplexity_delta = std::exp(got_nll_ / predicted) - exact};
}

}  // namespace

Result<KVAccuracy> kv_accuracy(Engine& engine, std::span<const TokenId> ids,
                               const std::string& kv_dtype, const Interrupt& interrupted) {
  if (engine.accelerator() != nullptr) {
    return {ErrorCode::kUnsupported,
            base::str_cat("kv_accuracy is measured on the CPU alone, and this model is on ",
                          base::quoted(engine.options().device), "; open it with device \"cpu\"")};
  }
  QUIRE_TRY_STATUS(engine.check_prompt(ids));
  if (ids.size() < 2) {
    return {ErrorCode::kInvalidArgument,
            "kv_accuracy needs at least two tokens; give a longer text"};
  }
  QUIRE_TRY(const tensor::KVGeometry stored, geometry_of(engine, kv_dtype));
  const tensor::KVGeometry plain =
      engine.model_config().kv_geometry(engine.bundle().dtype, block_tokens_of(engine));
  const tensor::StateGeometry states = engine.model_config().state_geometry();
  constexpr auto kStep = static_cast<std::int32_t>(kSliceTokens);
  QUIRE_TRY(auto reference, OwnKV::create(plain, states, ids, kStep));
  QUIRE_TRY(auto run, OwnKV::create(stored, states, ids, kStep));
  QUIRE_TRY(auto rounded, OwnKV::create(stored, states, ids, kStep));
  Comparison comparison(engine, ids, std::move(reference), std::move(run), std::move(rounded));
  for (std::size_t first = 0; first < ids.size(); first += kSliceTokens) {
    if (interrupted && interrupted()) {
      return {ErrorCode::kCancelled, "the call was interrupted"};
    }
    const std::size_t count = std::min(kSliceTokens, ids.size() - first);
    QUIRE_TRY_STATUS(
        engine.thread().ask_status([&] { return comparison.compare_slice(first, count); }));
  }
  KVAccuracy accuracy = comparison.result();
  const auto ratio_to = [&](tensor::DType dtype) {
    const auto other = engine.model_config().kv_geometry(dtype, stored.block_tokens);
    return static_cast<double>(other.block_bytes()) / static_cast<double>(stored.block_bytes());
  };
  accuracy.kv_dtype = kv_dtype;
  accuracy.reference = tensor::dtype_name(plain.dtype);
  accuracy.bits_per_value = stored.bits_per_value();
  accuracy.ratio_vs_bf16 = ratio_to(tensor::DType::kBFloat16);
  accuracy.ratio_vs_fp32 = ratio_to(tensor::DType::kFloat32);
  return accuracy;
}

}  // namespace quire::engine
