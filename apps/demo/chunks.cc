// Chunks in one program: a pile of cards registered once, then composed in three orders and subsets
// for several questions. Nothing of a card is computed again, wherever it stands.
//
//   quire_chunk_demo MODEL CONTEXT.jsonl     the first line of the file is the pile
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

namespace json = boost::json;
using quire::ChunkContent;
using quire::ChunkedLLM;
using quire::ChunkType;
using quire::CompositionSpec;
using quire::Result;
using quire::Status;

constexpr std::size_t kQuestions = 4;

struct Question {
  std::string text, answer, chunk_id;
};

struct Pile {
  std::string system_id;
  std::vector<std::string> card_ids;
  std::vector<Question> questions;
};

struct Order {
  const char* name;
  std::vector<std::string> card_ids;
};

std::string text_of(const json::value& object, const char* key) {
  return std::string(object.at(key).as_string());
}

// Tells whether one card, or one after the other, answers a question. Then the order of cards does
// not matter.
bool any_order(const json::value& question) {
  const std::string type = text_of(question, "type");
  return type == "one_hop" || type == "two_hop";
}

Result<Pile> register_pile(ChunkedLLM& llm, const json::value& context) {
  std::vector<ChunkContent> contents;
  contents.push_back({.content = text_of(context, "system"), .type = ChunkType::kSystemPrompt});
  for (const json::value& chunk : context.at("chunks").as_array()) {
    contents.push_back({.content = text_of(chunk, "text")});
  }
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY(const auto ids, llm.register_chunks(contents));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Pile pile{.system_id = ids.front(), .card_ids = {ids.begin() + 1, ids.end()}};
  for (const json::value& question : context.at("questions").as_array()) {
    if (pile.questions.size() < kQuestions && any_order(question)) {
      Question next{.text = text_of(question, "question"), .answer = text_of(question, "answer")};
      QUIRE_TRY(next.chunk_id,
                llm.register_chunk({.content = next.text, .type = ChunkType::kQuery}));
      pile.questions.push_back(std::move(next));
    }
  }
  QUIRE_TRY(const quire::ChunkStats stats, llm.chunk_stats());
  std::printf("\n%zu cards registered once in %.0f ms; they hold %.1f MiB of KV.\n",
              pile.card_ids.size(), seconds * 1e3,
              static_cast<double>(stats.memory_used_bytes) / (1 << 20));
  return pile;
}

std::vector<Order> orders_of(const Pile& pile) {
  std::vector<std::string> reversed(pile.card_ids.rbegin(), pile.card_ids.rend());
  std::vector<std::string> turned = pile.card_ids;
  std::rotate(turned.begin(), turned.begin() + std::ssize(turned) / 3, turned.end());
  return {{"as registered", pile.card_ids},
          {"backwards", std::move(reversed)},
          {"last two thirds first", std::move(turned)}};
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n");
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

// Asks a question over the cards in this order and prints how it went; the same ids without chunks
// for the time. True for the right answer.
Result<bool> ask_over(ChunkedLLM& llm, const Pile& pile, const Question& question,
                      const Order& order) {
  const quire::SamplingParams params = {.temperature = 0, .max_tokens = 48};
  const CompositionSpec spec = {.system_chunk_id = pile.system_id,
                                .context_chunk_ids = order.card_ids,
                                .query_chunk_id = question.chunk_id};
  QUIRE_TRY(const auto output, llm.generate_from_chunks(spec, params));
  QUIRE_TRY_STATUS(llm.llm().clear_prefix_cache());
  QUIRE_TRY(const auto plain, llm.llm().generate(output.prompt_token_ids, params));
  const bool good = trimmed(output.text) == question.answer;
  std::printf("%-52s %-22s %9lld %8lld %8.1f %8.1f %s: %s%s\n", question.text.c_str(), order.name,
              static_cast<long long>(output.usage.prompt_tokens - output.usage.cached_tokens),
              static_cast<long long>(output.usage.cached_tokens),
              output.timing.first_token_seconds * 1e3, plain.timing.first_token_seconds * 1e3,
              quire::reuse_grade_name(output.reuse.grade), trimmed(output.text).c_str(),
              good ? "" : (" (wrong: " + question.answer + ")").c_str());
  return good;
}

// Asks every question over every order; true when all answers are right.
Result<bool> ask(ChunkedLLM& llm, const Pile& pile) {
  int right = 0;
  int asked = 0;
  std::printf("\n%-52s %-22s %9s %8s %8s %9s %s\n", "", "cards", "computed", "reused", "ms",
              "uncached", "grade");
  for (const Question& question : pile.questions) {
    for (const Order& order : orders_of(pile)) {
      QUIRE_TRY(const bool good, ask_over(llm, pile, question, order));
      right += good ? 1 : 0;
      ++asked;
    }
  }
  std::printf("\n%d of %d answers right\n", right, asked);
  return right == asked;
}

Result<bool> run(const std::string& model, const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) {
    return {quire::ErrorCode::kIo, "no context in " + path};
  }
  QUIRE_TRY(ChunkedLLM llm, ChunkedLLM::open(model));
  QUIRE_TRY(const Pile pile, register_pile(llm, json::parse(line)));
  return ask(llm, pile);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: quire_chunk_demo MODEL CONTEXT.jsonl\n");
    return 2;
  }
  try {
    const auto right = run(argv[1], argv[2]);
    if (!right.ok()) {
      std::fprintf(stderr, "error: %s\n", right.error().message.c_str());
      return 1;
    }
    return *right ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "error: %s: %s\n", argv[2], failure.what());
    return 1;
  }
}
