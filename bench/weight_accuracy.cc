// Measures the loss of accuracy by quantised weights: perplexity of a text, and the
// Kullback-Leibler divergence of the next-token distributions from those of float32 weights.
//
//   weight_accuracy MODEL TEXT_FILE [TOKENS]     (default: the first 1,024)
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "must.h"
#include "quire/quire.h"

namespace {

using quire::LLM;
using quire::LLMOptions;
using quire::must;
using quire::TokenId;

// Rows of natural logarithms of the probabilities.
class Distributions {
 public:
  Distributions(std::vector<float> logits, std::size_t vocab)
      : values_(std::move(logits)), vocab_(vocab) {
    for (std::size_t row = 0; row < rows(); ++row) {
      const std::span<float> of = std::span(values_).subspan(row * vocab_, vocab_);
      const float largest = *std::max_element(of.begin(), of.end());
      double sum = 0;
      for (const float value : of) {
        sum += std::exp(double{value} - double{largest});
      }
      const double log_sum = double{largest} + std::log(sum);
      for (float& value : of) {
        value = static_cast<float>(double{value} - log_sum);
      }
    }
  }
  [[nodiscard]] std::size_t rows() const { return values_.size() / vocab_; }
  [[nodiscard]] std::span<const float> row(std::size_t i) const {
    return std::span(values_).subspan(i * vocab_, vocab_);
  }

 private:
  std::vector<float> values_;
  std::size_t vocab_;
};

double perplexity(const Distributions& of, std::span<const TokenId> ids) {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    sum -= double{of.row(i)[static_cast<std::size_t>(ids[i + 1])]};
  }
  return std::exp(sum / static_cast<double>(ids.size() - 1));
}

struct Distance {
  double divergence = 0;  // mean over rows, nats
  double same_best = 0;   // share of rows
};

Distance distance(const Distributions& from, const Distributions& to) {
  Distance distance;
  for (std::size_t i = 0; i < from.rows(); ++i) {
    const std::span<const float> p = from.row(i), q = to.row(i);
    for (std::size_t k = 0; k < p.size(); ++k) {
      distance.divergence += std::exp(double{p[k]}) * (double{p[k]} - double{q[k]});
    }
    const auto best = [](std::span<const float> of) {
      return std::max_element(of.begin(), of.end()) - of.begin();
    };
    distance.same_best += best(p) == best(q) ? 1 : 0;
  }
  const auto rows = static_cast<double>(from.rows());
  return {distance.divergence / rows, distance.same_best / rows};
}

struct Way {
  const char* name;
  LLMOptions options;
};

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what a bench throws may end it.
int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: weight_accuracy MODEL TEXT_FILE [TOKENS]\n", stderr);
    return 2;
  }
  std::ifstream file(argv[2]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto most = static_cast<std::size_t>(argc > 3 ? std::atoi(argv[3]) : 1024);
  const Way ways[] = {{"float32", {.dtype = "float32"}},
                      {"bfloat16", {.dtype = "bfloat16"}},
                      {"auto", {}},
                      {"q8g32", {.quantize = "q8g32"}},
                      {"q4g32", {.quantize = "q4g32"}}};
  std::vector<Distributions> exact;
  std::printf("%-10s %12s %14s %12s\n", "weights", "perplexity", "KL [nats]", "same best");
  for (const Way& way : ways) {
    LLM llm = must(LLM::open(argv[1], way.options));
    std::vector<TokenId> ids = must(llm.tokenizer()).encode(text).value();
    ids.resize(std::min(ids.size(), most));
    auto output = must(llm.forward(ids));
    Distributions of(std::move(output.logits), static_cast<std::size_t>(output.vocab_size));
    if (exact.empty()) {
      exact.push_back(of);
    }
    const Distance from_exact = distance(exact.front(), of);
    std::printf("%-10s %12.4f %14.6f %11.2f%%\n", way.name, perplexity(of, ids),
                from_exact.divergence, 100 * from_exact.same_best);
  }
  return 0;
}
