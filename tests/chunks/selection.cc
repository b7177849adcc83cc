#include "selection.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "dense_oracle.h"
#include "quire/chunks.h"
#include "scene.h"

namespace quire::chunks {

std::int32_t wanted(std::int32_t percent, std::int32_t tokens) {
  return (percent * tokens + 99) / 100;
}

std::vector<double> scores_of(Selector selector, const Scene& scene, const DenseModel& oracle,
                              std::uint64_t seed) {
  if (selector == Selector::kValueDeviation) {
    return scene.value_deviations(oracle);
  }
  if (selector == Selector::kQueryAttention) {
    return scene.query_attention(oracle);
  }
  std::vector<double> scores;
  for (const Scene::Segment& context : scene.contexts) {
    for (std::size_t local = 0; local < context.ids.size(); ++local) {
      seed += 0x9e3779b97f4a7c15;  // splitmix64, its 53 upper bits
      std::uint64_t random = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9;
      random = (random ^ (random >> 27)) * 0x94d049bb133111eb;
      scores.push_back(selector == Selector::kFirst
                           ? -static_cast<double>(local)
                           : static_cast<double>((random ^ (random >> 31)) >> 11));
    }
  }
  return scores;
}

Choice choose(const Scene& scene, const std::vector<double>& scores, std::int32_t percent) {
  Tokens order;
  for (std::int32_t i = 0; i < std::ssize(scores); ++i) {
    order.push_back(i);
  }
  const auto score = [&](std::int32_t i) { return scores[static_cast<std::size_t>(i)]; };
  std::ranges::sort(order, [&](std::int32_t a, std::int32_t b) {
    return score(a) > score(b) || (score(a) == score(b) && a < b);
  });
  const auto count = static_cast<std::size_t>(wanted(percent, scene.num_context_tokens()));
  Choice choice;
  if (count > 0 && count < order.size()) {
    const double last = score(order[count - 1]);
    const double next = score(order[count]);
    choice.gap = last == next ? 1 : (last - next) / std::abs(last);
    choice.next_best = scene.first_context() + order[count];
  }
  order.resize(count);
  for (const std::int32_t i : order) {
    choice.tokens.push_back(scene.first_context() + i);
  }
  std::ranges::sort(choice.tokens);
  return choice;
}

}  // namespace quire::chunks
