#include "device_double.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/kernels/choice.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// The rule of sampling.h for greedy choices and for those that cut nothing.
TokenId choose(std::span<const float> logits, const kernels::Choice& choice) {
  QUIRE_CHECK(choice.top_k == 0 && choice.top_p == 1 && choice.min_p == 0,
              "the double cuts nothing");
  const auto largest = std::ranges::max_element(logits);
  if (choice.temperature == 0) {
    return static_cast<TokenId>(largest - logits.begin());
  }
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - *largest) / choice.temperature);
  };
  double sum = 0;
  for (const float logit : logits) {
    sum += weight(logit);
  }
  double reached = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    reached += weight(logits[id]);
    if (reached > choice.uniform * sum) {
      return static_cast<TokenId>(id);
    }
  }
  return static_cast<TokenId>(largest - logits.begin());
}

// Returns `chosen`, then all tokens, most likely first: a request asked for the first of them.
std::vector<kernels::TokenLogprob> logprobs_of(std::span<const float> logits, TokenId chosen) {
  const auto logit_of = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, std::ranges::greater(), logit_of);
  ids.insert(ids.begin(), chosen);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit));
  }
  std::vector<kernels::TokenLogprob> told(ids.size());
  std::ranges::transform(ids, told.begin(), [&](TokenId id) {
    return kernels::TokenLogprob{id, static_cast<float>(logit_of(id) - std::log(sum))};
  });
  return told;
}

}  // namespace

DeviceDouble::DeviceDouble(std::unique_ptr<model::DecoderBackend> cpu,
                           std::shared_ptr<DoubleScript> script)
    : cpu_(std::move(cpu)), script_(std::move(script)) {}

Result<std::span<float>> DeviceDouble::forward(const model::ForwardBatch& batch,
                                               std::span<const tensor::PagedKVView> kv,
                                               model::ForwardProbe* probe) {
  QUIRE_CHECK(running_.empty(), "a step that was launched is not awaited yet");
  result_ = {};
  return cpu_->forward(batch, kv, probe);
}

Status DeviceDouble::launch(const model::ForwardBatch& batch,
                            std::span<const tensor::PagedKVView> kv) {
  QUIRE_CHECK(running_.size() < 2, "three steps at once");
  const int number = ++script_->launches;
  script_->launched_ahead += running_.empty() ? 0 : 1;
  if (script_->in_launch) {
    script_->in_launch();
  }
  if (number == script_->refuses_launch) {
    return {ErrorCode::kDevice, "refused"};
  }
  std::vector<TokenId> ids(batch.token_ids.begin(), batch.token_ids.end());
  for (std::size_t row = 0; row < batch.ids_from.size(); ++row) {
    if (const std::int32_t from = batch.ids_from[row]; from >= 0) {
      ids[row] = std::max(chosen_last_.at(static_cast<std::size_t>(from)), 0);
    }
  }
  model::ForwardBatch known = batch;
  known.token_ids = ids;
  QUIRE_TRY(const std::span<float> logits, cpu_->forward(known, kv, nullptr));
  Step step{
      .number = number, .logits = {logits.begin(), logits.end()}, .chosen = {}, .logprobs = {}};
  const std::size_t vocab = logits.size() / std::max<std::size_t>(batch.logit_rows.size(), 1);
  for (std::size_t row = 0; row < batch.choices.size(); ++row) {
    const auto original = std::span(step.logits).subspan(row * vocab, vocab);
    std::vector<float> changed(original.begin(), original.end());
    for (const kernels::LogitChange& change : batch.changes) {
      if (std::cmp_equal(change.row, row)) {
        float& logit = changed[static_cast<std::size_t>(change.id)];
        logit = kernels::changed_logit(logit, change);
      }
    }
    const bool chooses =
        batch.choices[row].wanted != 0 && !(number == script_->leaves_to_host && row == 0);
    step.chosen.push_back(chooses ? choose(changed, batch.choices[row]) : -1);
    const bool tells = chooses && batch.choices[row].logprobs >= 0;
    step.logprobs.push_back(tells ? logprobs_of(original, step.chosen.back())
                                  : std::vector<kernels::TokenLogprob>());
  }
  chosen_last_ = step.chosen;
  for (Step& before : running_) {
    std::ranges::fill(before.logits, std::numeric_limits<float>::quiet_NaN());
  }
  running_.push_back(std::move(step));
  return {};
}

Result<std::span<float>> DeviceDouble::await() {
  QUIRE_CHECK(!running_.empty(), "nothing was launched");
  result_ = std::move(running_.front());
  running_.pop_front();
  if (result_.number == script_->fails_in_await) {
    return {ErrorCode::kDevice, "lost"};
  }
  return std::span(result_.logits);
}

void DeviceDouble::abandon() {
  script_->abandoned += running_.empty() ? 0 : 1;
  running_.clear();
}

}  // namespace quire::engine
