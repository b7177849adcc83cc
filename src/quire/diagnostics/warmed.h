// warmed(): samples of a shape that has been computed before.
#pragma once

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/result.h"

namespace quire::diagnostics {

// Calls `round` once without keeping its answer: the first of a shape records a graph on a GPU, and
// touches fresh memory on a CPU. Returns the answers of `count` calls after it, or the first error.
template <class Round>
auto warmed(int count, Round round)
    -> Result<std::vector<std::remove_cvref_t<decltype(round().value())>>> {
  std::vector<std::remove_cvref_t<decltype(round().value())>> samples;
  for (int i = 0; i <= count; ++i) {
    QUIRE_TRY(auto sample, round());
    if (i > 0) {
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

// Returns the upper median of what `field` says of the samples. Precondition: there are some.
template <class Sample, class Field = std::identity>
double median(const std::vector<Sample>& samples, Field field = {}) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) {
    values.push_back(std::invoke(field, sample));
  }
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

}  // namespace quire::diagnostics
