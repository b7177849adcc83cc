// Shares the demo model, seeded ids, statistics and temporary folders between the tests of the
// public LLM.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "quire/base/temporary_folder.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {

using Ids = std::vector<TokenId>;

// Returns the device on which the tests compute: the CPU, or the one that QUIRE_TEST_DEVICE names,
// as in the programs for a GPU.
inline std::string test_device() {
  const char* const device = std::getenv("QUIRE_TEST_DEVICE");
  return device == nullptr ? "cpu" : device;
}
inline bool on_gpu() { return test_device() != "cpu"; }
inline LLMOptions here(LLMOptions options = {}) {
  options.device = test_device();
  return options;
}

// Returns the most exact arithmetic of that device. The next function returns its tolerance as a
// share of the largest logit. Two ways to one result may differ by it.
inline std::string exact_dtype() { return on_gpu() ? "bfloat16" : "float32"; }
inline double rounding() { return on_gpu() ? 0.03 : 1e-5; }

// Returns whether that device computes a model of tests/golden/model. A GPU refuses some by name.
inline bool computes_here(std::string_view model) {
  const std::string_view name = model.substr(model.rfind('/') + 1);
  constexpr std::string_view kOnTheCpu[] = {"deepseek", "gemma2", "gemma4", "glm4_moe_lite",
                                            "ministral3"};
  return !on_gpu() || std::ranges::none_of(kOnTheCpu, [&](std::string_view family) {
    return name.starts_with(family);
  });
}

// Returns a path of the source tree: below where the test runs, or where it was built.
inline std::string source_path(const std::string& path) {
  return std::filesystem::exists(path) ? path : QUIRE_SOURCE_DIR "/" + path;
}

inline const std::string kModel = source_path("models/cardfile/model");

// Returns seeded ids from 3 to 192, which the tiny models of tests/golden have.
inline Ids small_ids(std::size_t count, std::uint32_t seed) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(static_cast<TokenId>(3 + (seed >> 8) % 190));
  }
  return ids;
}

// Returns seeded ids of the demo model, without the special ones.
inline Ids some_ids(std::size_t count, std::uint32_t seed) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(static_cast<TokenId>(10 + (seed >> 8) % 1500));
  }
  return ids;
}

inline Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline double stat(const LLM& llm, const std::string& name) {
  const Stats stats = llm.stats().value();
  for (const auto& [key, value] : stats) {
    if (key == name) {
      return value;
    }
  }
  ADD_FAILURE() << "no statistic " << name;
  return -1;
}

inline double stat(ChunkedLLM& llm, const std::string& name) { return stat(llm.llm(), name); }

// Returns the statistic, once it is `wanted` or 20 seconds have passed. A thread that reads in the
// background holds its blocks a moment longer than the caller does.
template <class Model>
double settled_stat(Model& llm, const std::string& name, double wanted) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  double value = stat(llm, name);
  while (value != wanted && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
    value = stat(llm, name);
  }
  return value;
}

// Returns the largest difference, relative to the largest logit of `a`.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i])));
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return difference / largest;
}

// Returns the root mean square of the difference, as a share of the deviation of `wanted`.
inline double deviation(const std::vector<float>& wanted, const std::vector<float>& got) {
  double sum = 0, squares = 0, difference = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    sum += wanted[i];
    squares += double{wanted[i]} * wanted[i];
    difference += (double{got[i]} - wanted[i]) * (double{got[i]} - wanted[i]);
  }
  return std::sqrt(difference / (squares - sum * sum / static_cast<double>(wanted.size())));
}

// Flips a bit of a file. A second call restores the file.
inline void flip_bit(const std::filesystem::path& file, std::uintmax_t at) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(static_cast<std::streamoff>(at));
  const int was = bytes.get();
  bytes.seekp(static_cast<std::streamoff>(at));
  bytes.put(static_cast<char>(was ^ 1));
}

using base::TemporaryFolder;

// Returns the value, or fails the test with the error's message.
template <class T>
T must(Result<T> result) {
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return std::move(result).value();
}

// Opens the demo model with two threads.
inline LLM open_demo(LLMOptions options = {}) {
  options.threads = 2;
  return must(LLM::open(kModel, here(options)));
}
inline ChunkedLLM open_chunked(const ChunkCacheOptions& chunks = {}, LLMOptions options = {}) {
  options.threads = 2;
  return must(ChunkedLLM::open(kModel, here(options), chunks));
}

inline SamplingParams greedy(std::int32_t max_tokens) {
  return {.temperature = 0, .max_tokens = max_tokens};
}
// Returns parameters of an answer that has exactly so many tokens.
inline SamplingParams greedy_to_length(std::int32_t max_tokens) {
  return {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true};
}

}  // namespace quire
