// How often answers are right, by question type and reuse mode: a table made by the engine itself,
// for any model trained on the card-file world (models/cardfile/README.md has the trainer's own
// table).
//
//   python3 models/cardfile/cardfile.py write --seed 1 --contexts 400 --out build/contexts.jsonl
//   reuse_accuracy models/cardfile/model build/contexts.jsonl [QUESTIONS [MODE...]]
//   reuse_accuracy models/cardfile/model build/contexts.jsonl QUESTIONS curve
//   reuse_accuracy models/hybrid/model build/contexts.jsonl QUESTIONS exact anchored layers
//
// Models whose layers carry a state refuse to blend tokens, and ask for rows by name.
//
// QUESTIONS: so many of each context, the first ones; 0 (all) by default. MODE: the rows whose name
// contains it; also every selector at shares of 0.05, 0.15, 0.30 and 0.60, such as "random 0.60, in
// place", and bands of layers, such as "layers 4-6", which are no rows by default. Rows "in place"
// are defined as in the trainer's table: every context computed where it stands. The default
// computes it once, right behind the system chunk, for all orders (docs/adr/0008). An answer counts
// when it is the greedy one.
//
// "curve": every selector by its share, and how far the distribution of the answer's first token is
// from that of mode exact: the mean KL divergence KL(exact, mode) in nats, and how often both have
// the same most likely token.
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "must.h"
#include "quire/quire.h"

namespace {

namespace json = boost::json;
using quire::ChunkContent;
using quire::ChunkedLLM;
using quire::ChunkType;
using quire::CompositionSpec;
using quire::Positions;
using quire::ReuseMode;
using quire::Selector;

struct Mode {
  std::string name;
  CompositionSpec spec;  // without chunks
};

CompositionSpec blend(Selector selector, double share, ReuseMode base = ReuseMode::kAnchored) {
  return {.mode = ReuseMode::kBlend, .blend = {.selector = selector, .share = share, .base = base}};
}

CompositionSpec in_place(CompositionSpec spec) {
  spec.computed_in_place = true;
  return spec;
}

// Rows by default.
std::vector<Mode> usual_modes() {
  return {
      {"exact", {.mode = ReuseMode::kExact}},
      {"anchored, in place", {.computed_in_place = true}},
      {"anchored", {}},
      {"independent", {.mode = ReuseMode::kIndependent}},
      {"parallel", {.positions = Positions::kParallel}},
      {"value_dev 0.15, in place", in_place(blend(Selector::kValueDeviation, 0.15))},
      {"random 0.15, in place", in_place(blend(Selector::kRandom, 0.15))},
      {"query_attn 0.15, in place", in_place(blend(Selector::kQueryAttention, 0.15))},
      {"value_dev 0.15", blend(Selector::kValueDeviation, 0.15)},
      {"value_dev 0.30, independent",
       blend(Selector::kValueDeviation, 0.30, ReuseMode::kIndependent)},
      {"random 0.15", blend(Selector::kRandom, 0.15)},
      {"first_k 0.15", blend(Selector::kFirst, 0.15)},
      {"query_attn 0.15", blend(Selector::kQueryAttention, 0.15)},
      {"query_attn 0.30", blend(Selector::kQueryAttention, 0.30)},
      {"query_attn 0.15, independent",
       blend(Selector::kQueryAttention, 0.15, ReuseMode::kIndependent)},
  };
}

constexpr std::pair<const char*, Selector> kSelectors[] = {
    {"query_attn", Selector::kQueryAttention},
    {"value_dev", Selector::kValueDeviation},
    {"random", Selector::kRandom},
    {"first_k", Selector::kFirst}};

std::vector<Mode> curve_modes() {
  std::vector<Mode> modes = {{"exact", {.mode = ReuseMode::kExact}},
                             {"anchored", {}},
                             {"independent", {.mode = ReuseMode::kIndependent}}};
  for (const auto& [name, selector] : kSelectors) {
    for (const char* share : {"0.05", "0.15", "0.30", "0.60", "1.00"}) {
      modes.push_back({std::string(name) + " " + share, blend(selector, std::stod(share))});
    }
  }
  return modes;
}

// Layer at which the contexts keep hidden states, for the bands.
constexpr std::int32_t kBandLayer = 4;

std::vector<Mode> bands() {
  std::vector<Mode> modes;
  for (const quire::LayerRange layers : {quire::LayerRange{kBandLayer, kBandLayer + 1},
                                         {kBandLayer, kBandLayer + 2},
                                         {0, kBandLayer - 1},
                                         {0, kBandLayer},
                                         {0, 2 * kBandLayer}}) {
    modes.push_back({"layers " + std::to_string(layers.first) + "-" + std::to_string(layers.last),
                     {.mode = ReuseMode::kBlend, .blend = {.layers = layers}}});
  }
  return modes;
}

// The usual ones, and every selector by its share, each once, and bands of layers.
std::vector<Mode> all_modes() {
  std::vector<Mode> modes = usual_modes();
  const auto add = [&modes](Mode mode) {
    if (std::ranges::find(modes, mode.name, &Mode::name) == modes.end()) {
      modes.push_back(std::move(mode));
    }
  };
  for (const auto& [name, selector] : kSelectors) {
    for (const char* share : {"0.05", "0.15", "0.30", "0.60"}) {
      const std::string row = std::string(name) + " " + share;
      add({row, blend(selector, std::stod(share))});
      add({row + ", in place", in_place(blend(selector, std::stod(share)))});
    }
  }
  std::ranges::move(bands(), std::back_inserter(modes));
  return modes;
}

// Those whose name contains one of `wanted`; the usual ones without any.
std::vector<Mode> chosen_modes(const std::vector<std::string>& wanted) {
  if (wanted.empty()) {
    return usual_modes();
  }
  std::vector<Mode> modes = all_modes();
  std::erase_if(modes, [&](const Mode& mode) {
    return std::ranges::none_of(
        wanted, [&](const std::string& part) { return mode.name.find(part) != std::string::npos; });
  });
  return modes;
}

constexpr const char* kTypes[] = {"one_hop", "two_hop",       "split_adj", "split_link",
                                  "update",  "two_hop_split", "read",      "who"};

struct Count {
  int right = 0;
  int asked = 0;
};
// From mode exact, over all questions.
struct Distance {
  double kl = 0;  // summed
  int same_best = 0;
  int asked = 0;
};
struct Row {
  std::map<std::string, Count> by_type;
  Distance distance;
};
using Table = std::map<std::string, Row>;  // by mode

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n");
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

struct Question {
  std::string type, answer, chunk_id;
};

// Natural logarithms of the softmax of the last row.
std::vector<double> log_probabilities(const quire::ForwardOutput& output) {
  const auto size = static_cast<std::size_t>(output.vocab_size);
  std::vector<double> result(output.logits.end() - output.vocab_size, output.logits.end());
  const double most = *std::max_element(result.begin(), result.end());
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) {
    sum += std::exp(result[i] - most);
  }
  for (double& value : result) {
    value -= most + std::log(sum);
  }
  return result;
}

void add_distance(const std::vector<double>& exact, const std::vector<double>& mode,
                  Distance& distance) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    distance.kl += std::exp(exact[i]) * (exact[i] - mode[i]);
  }
  const auto best = [](const std::vector<double>& of) {
    return std::max_element(of.begin(), of.end()) - of.begin();
  };
  distance.same_best += best(exact) == best(mode) ? 1 : 0;
  ++distance.asked;
}

// The first tokens of the answers to the same questions, in mode exact and another.
void measure(ChunkedLLM& llm, const std::vector<CompositionSpec>& specs, Distance& distance) {
  for (const CompositionSpec& spec : specs) {
    CompositionSpec exact = spec;
    exact.mode = ReuseMode::kExact;
    add_distance(log_probabilities(must(llm.logits_from_chunks(exact))),
                 log_probabilities(must(llm.logits_from_chunks(spec))), distance);
  }
}

struct Asking {
  std::size_t most;  // questions of a context
  std::vector<Mode> modes;
  bool distances;
};

// One context: its cards registered once, all questions asked in every mode.
void ask_all(ChunkedLLM& llm, const json::value& context, const Asking& asking, Table& table) {
  const bool keeps_hidden = std::ranges::any_of(
      asking.modes, [](const Mode& mode) { return mode.spec.blend.layers.has_value(); });
  std::vector<ChunkContent> contents;
  contents.push_back(
      {.content = std::string(context.at("system").as_string()), .type = ChunkType::kSystemPrompt});
  for (const json::value& chunk : context.at("chunks").as_array()) {
    contents.push_back({.content = std::string(chunk.at("text").as_string())});
    if (keeps_hidden) {
      contents.back().options.keep_hidden = kBandLayer;
    }
  }
  const std::vector<std::string> cards = must(llm.register_chunks(contents));
  std::vector<Question> questions;
  const json::array& all = context.at("questions").as_array();
  for (std::size_t i = 0; i < std::min(all.size(), asking.most); ++i) {
    questions.push_back(
        {std::string(all[i].at("type").as_string()), std::string(all[i].at("answer").as_string()),
         must(llm.register_chunk({.content = std::string(all[i].at("question").as_string()),
                                  .type = ChunkType::kQuery}))});
  }
  const quire::SamplingParams params = {.temperature = 0, .max_tokens = 64};
  for (const Mode& mode : asking.modes) {
    std::vector<CompositionSpec> specs;
    for (const Question& question : questions) {
      CompositionSpec spec = mode.spec;
      spec.system_chunk_id = cards.front();
      spec.context_chunk_ids = {cards.begin() + 1, cards.end()};
      spec.query_chunk_id = question.chunk_id;
      specs.push_back(std::move(spec));
    }
    const auto outputs = must(llm.batch_generate_from_chunks(specs, {&params, 1}));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      Count& count = table[mode.name].by_type[questions[i].type];
      count.right += trimmed(outputs[i].text) == questions[i].answer ? 1 : 0;
      ++count.asked;
    }
    if (asking.distances) {
      measure(llm, specs, table[mode.name].distance);
    }
  }
  must(llm.clear_chunks());
}

void print(const std::vector<Mode>& modes, const Table& table) {
  std::printf("%-34s", "percent right");
  for (const char* type : kTypes) {
    std::printf(" %13s", type);
  }
  std::printf("%s\n",
              table.begin()->second.distance.asked > 0 ? "  KL(exact, mode)  same best" : "");
  for (const Mode& mode : modes) {
    std::printf("%-34s", mode.name.c_str());
    for (const char* type : kTypes) {
      const auto& counts = table.at(mode.name).by_type;
      const auto found = counts.find(type);
      if (found == counts.end()) {
        std::printf(" %13s", "-");
      } else {
        std::printf(" %6.1f (%4d)", 100.0 * found->second.right / found->second.asked,
                    found->second.asked);
      }
    }
    if (const Distance& distance = table.at(mode.name).distance; distance.asked > 0) {
      std::printf(" %16.2e %9.1f%%", distance.kl / distance.asked,
                  100.0 * distance.same_best / distance.asked);
    }
    std::printf("\n");
  }
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what a bench throws may end it.
int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: reuse_accuracy MODEL CONTEXTS.jsonl [QUESTIONS [MODE...]]\n");
    return 2;
  }
  const auto asked = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 0;
  const std::vector<std::string> wanted(argv + std::min(argc, 4), argv + argc);
  const bool curve = !wanted.empty() && wanted.front() == "curve";
  const Asking asking = {.most = asked > 0 ? asked : std::numeric_limits<std::size_t>::max(),
                         .modes = curve ? curve_modes() : chosen_modes(wanted),
                         .distances = curve};
  if (asking.modes.empty()) {
    std::fprintf(stderr, "error: no row has \"%s\" in its name; without MODE there are the usual\n",
                 wanted.front().c_str());
    return 2;
  }
  ChunkedLLM llm = must(ChunkedLLM::open(argv[1], {.dtype = "float32"}));
  std::ifstream in(argv[2]);
  Table table;
  int contexts = 0;
  for (std::string line; std::getline(in, line); ++contexts) {
    ask_all(llm, json::parse(line), asking, table);
  }
  if (contexts == 0) {
    std::fprintf(stderr, "error: no contexts in %s\n", argv[2]);
    return 1;
  }
  std::printf("%d contexts\n", contexts);
  print(asking.modes, table);
  return 0;
}
