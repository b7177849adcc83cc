#include "quire/model/routing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/model/layer_plan.h"

namespace quire::model {
namespace {

// Tells whether logit `a` ranks before `b`; NaN is the largest.
bool is_larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// Sets `ids` to those of the largest logits, in ascending order.
void choose_largest(std::span<const float> logits, std::span<std::int32_t> ids) {
  std::size_t count = 0;  // of ids so far, the largest logit first
  for (std::size_t id = 0; id < logits.size(); ++id) {
    std::size_t at = count;
    while (at > 0 && is_larger(logits[id], logits[static_cast<std::size_t>(ids[at - 1])])) {
      --at;
    }
    if (at == ids.size()) {
      continue;
    }
    count = std::min(count + 1, ids.size());
    std::copy_backward(ids.begin() + static_cast<std::ptrdiff_t>(at),
                       ids.begin() + static_cast<std::ptrdiff_t>(count) - 1,
                       ids.begin() + static_cast<std::ptrdiff_t>(count));
    ids[at] = static_cast<std::int32_t>(id);
  }
  std::ranges::sort(ids);
}

}  // namespace

void choose_experts(const Experts& experts, std::span<const float> logits,
                    std::span<std::int32_t> ids, std::span<float> weights) {
  choose_largest(logits, ids);
  double most = logits[static_cast<std::size_t>(ids.front())];
  for (const std::int32_t id : ids) {
    most = std::max<double>(most, logits[static_cast<std::size_t>(id)]);
  }
  const auto power = [&](float logit) { return std::exp(static_cast<double>(logit) - most); };
  double sum = 0;
  if (experts.rule == RouterRule::kSoftmaxOfAll) {
    for (const float logit : logits) {
      sum += power(logit);
    }
  } else {
    for (const std::int32_t id : ids) {
      sum += power(logits[static_cast<std::size_t>(id)]);
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    weights[i] = static_cast<float>(power(logits[static_cast<std::size_t>(ids[i])]) / sum);
  }
}

void group_rows(const Experts& experts, std::span<const std::int32_t> ids,
                std::span<const float> weights, Routing& routing) {
  const auto count = static_cast<std::size_t>(experts.count);
  const auto chosen = static_cast<std::size_t>(experts.chosen);
  routing.groups.assign(count, {});
  routing.rows.resize(ids.size());
  routing.weights.resize(ids.size());
  routing.places.resize(ids.size());
  for (const std::int32_t id : ids) {
    ++routing.groups[static_cast<std::size_t>(id)].rows;
  }
  std::int32_t first = 0;
  for (std::size_t id = 0; id < count; ++id) {
    Routing::Group& group = routing.groups[id];
    group.expert = static_cast<std::int32_t>(id);
    group.first = first;
    first += group.rows;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto place =
        static_cast<std::size_t>(routing.groups[static_cast<std::size_t>(ids[i])].first++);
    routing.rows[place] = static_cast<std::int32_t>(i / chosen);
    routing.weights[place] = weights[i];
    routing.places[i] = static_cast<std::int32_t>(place);
  }
  for (Routing::Group& group : routing.groups) {
    group.first -= group.rows;
  }
  std::erase_if(routing.groups, [](const Routing::Group& group) { return group.rows == 0; });
}

}  // namespace quire::model
