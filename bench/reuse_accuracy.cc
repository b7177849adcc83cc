// How often answers are right, by question type and reuse mode: a table made by the engine itself,
// for any model trained on the card-file world (models/cardfile/README.md has the trainer's own
// table).
//
//   python3 models/cardfile/cardfile.py write --seed 1 --contexts 400 --out contexts.jsonl
//   reuse_accuracy models/cardfile/model contexts.jsonl [QUESTIONS [MODE...]]
//
// QUESTIONS: so many of each context, the first ones; 0 (all) by default. MODE: the rows whose name
// contains it. Rows "in place" are defined as in the trainer's table: every context computed where
// it stands. The default computes it once, right behind the system chunk, for all orders
// (docs/adr/0008). An answer counts when it is the greedy one.
#include <algorithm>
#include <boost/json.hpp>
#include <boost/json/src.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
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

std::vector<Mode> all_modes() {
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
      {"random 0.15", blend(Selector::kRandom, 0.15)},
      {"first_k 0.15", blend(Selector::kFirst, 0.15)},
      {"query_attn 0.15", blend(Selector::kQueryAttention, 0.15)},
      {"query_attn 0.30", blend(Selector::kQueryAttention, 0.30)},
      {"query_attn 0.15, independent",
       blend(Selector::kQueryAttention, 0.15, ReuseMode::kIndependent)},
  };
}

// Those whose name contains one of `wanted`; all without any.
std::vector<Mode> chosen_modes(const std::vector<std::string>& wanted) {
  std::vector<Mode> modes = all_modes();
  if (!wanted.empty()) {
    std::erase_if(modes, [&](const Mode& mode) {
      return std::none_of(wanted.begin(), wanted.end(), [&](const std::string& part) {
        return mode.name.find(part) != std::string::npos;
      });
    });
  }
  return modes;
}

constexpr const char* kTypes[] = {"one_hop", "two_hop",       "split_adj", "split_link",
                                  "update",  "two_hop_split", "read",      "who"};

struct Count {
  int right = 0;
  int asked = 0;
};
using Table = std::map<std::string, std::map<std::string, Count>>;  // mode -> type

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n");
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

struct Question {
  std::string type, answer, chunk_id;
};

// One context: its cards registered once, all questions asked in every mode.
void ask_all(ChunkedLLM& llm, const json::value& context, std::size_t most,
             const std::vector<Mode>& modes, Table& table) {
  std::vector<ChunkContent> contents;
  contents.push_back(
      {.content = std::string(context.at("system").as_string()), .type = ChunkType::kSystemPrompt});
  for (const json::value& chunk : context.at("chunks").as_array()) {
    contents.push_back({.content = std::string(chunk.at("text").as_string())});
  }
  const std::vector<std::string> cards = must(llm.register_chunks(contents));
  std::vector<Question> questions;
  const json::array& all = context.at("questions").as_array();
  for (std::size_t i = 0; i < std::min(all.size(), most); ++i) {
    questions.push_back(
        {std::string(all[i].at("type").as_string()), std::string(all[i].at("answer").as_string()),
         must(llm.register_chunk({.content = std::string(all[i].at("question").as_string()),
                                  .type = ChunkType::kQuery}))});
  }
  const quire::SamplingParams params = {.temperature = 0, .max_tokens = 64};
  for (const Mode& mode : modes) {
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
      Count& count = table[mode.name][questions[i].type];
      count.right += trimmed(outputs[i].text) == questions[i].answer ? 1 : 0;
      ++count.asked;
    }
  }
  must(llm.clear_chunks());
}

void print(const std::vector<Mode>& modes, const Table& table) {
  std::printf("%-34s", "percent right");
  for (const char* type : kTypes) {
    std::printf(" %13s", type);
  }
  std::printf("\n");
  for (const Mode& mode : modes) {
    std::printf("%-34s", mode.name.c_str());
    for (const char* type : kTypes) {
      const auto& counts = table.at(mode.name);
      const auto found = counts.find(type);
      if (found == counts.end()) {
        std::printf(" %13s", "-");
      } else {
        std::printf(" %6.1f (%4d)", 100.0 * found->second.right / found->second.asked,
                    found->second.asked);
      }
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
  const std::size_t most = asked > 0 ? asked : std::numeric_limits<std::size_t>::max();
  const std::vector<Mode> modes = chosen_modes({argv + std::min(argc, 4), argv + argc});
  ChunkedLLM llm = must(ChunkedLLM::open(argv[1], {.dtype = "float32"}));
  std::ifstream in(argv[2]);
  Table table;
  int contexts = 0;
  for (std::string line; std::getline(in, line); ++contexts) {
    ask_all(llm, json::parse(line), most, modes, table);
  }
  if (contexts == 0) {
    std::fprintf(stderr, "error: no contexts in %s\n", argv[2]);
    return 1;
  }
  std::printf("%d contexts\n", contexts);
  print(modes, table);
  return 0;
}
