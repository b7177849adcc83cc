// The main job in one program: a long context, and several questions about it. Each is asked cold
// (nothing in the cache) and warm (the context's KV is reused). Shows answers, tokens and times.
//
//   quire_demo MODEL CONTEXT.jsonl     the first line of the file is the context
#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "quire/quire.h"

namespace {

namespace json = boost::json;
using quire::GenerationOutput;
using quire::LLM;
using quire::Result;
using quire::Status;

struct Question {
  std::string text;
  std::string answer;
};

struct Context {
  std::string system;
  json::array cards;
  std::vector<Question> questions;

  [[nodiscard]] std::string messages_json(const std::string& question) const {
    json::array messages;
    messages.emplace_back(json::object{{"role", "system"}, {"content", system}});
    if (!question.empty()) {
      messages.emplace_back(json::object{{"role", "user"}, {"content", question}});
    }
    return json::serialize(messages);
  }
  [[nodiscard]] std::string variables_json() const {
    return json::serialize(json::object{{"documents", cards}});
  }
};

Context parse_context(const std::string& line) {
  const json::value value = json::parse(line);
  Context context;
  context.system = value.at("system").as_string().c_str();
  for (const json::value& chunk : value.at("chunks").as_array()) {
    context.cards.emplace_back(json::object{{"text", chunk.at("text")}});
  }
  for (const json::value& question : value.at("questions").as_array()) {
    context.questions.push_back(
        {question.at("question").as_string().c_str(), question.at("answer").as_string().c_str()});
  }
  return context;
}

// One question, cold and warm.
struct Row {
  GenerationOutput cold;
  GenerationOutput warm;
};

struct Measured {
  std::int64_t context_tokens = 0;
  double context_seconds = 0;  // to compute the context's KV once
  std::vector<Row> rows;
};

Result<GenerationOutput> ask(LLM& llm, const Context& context, const Question& question) {
  return llm.chat(context.messages_json(question.text), {.temperature = 0, .max_tokens = 64},
                  context.variables_json());
}

// Computes the KV of the context alone, as the first question would leave it.
Status read_context(LLM& llm, const Context& context, Measured& measured) {
  QUIRE_TRY(const quire::Tokenizer tokenizer, llm.tokenizer());
  QUIRE_TRY(
      const std::vector<quire::TokenId> ids,
      tokenizer.apply_chat_template(context.messages_json(""), false, context.variables_json()));
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY_STATUS(llm.forward(ids, quire::ForwardReuse::kExact, quire::ForwardRows::kLast));
  measured.context_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  measured.context_tokens = static_cast<std::int64_t>(ids.size());
  return {};
}

Result<Measured> measure(LLM& llm, const Context& context) {
  Measured measured;
  measured.rows.resize(context.questions.size());
  for (std::size_t i = 0; i < context.questions.size(); ++i) {
    QUIRE_TRY_STATUS(llm.clear_prefix_cache());
    QUIRE_TRY(measured.rows[i].cold, ask(llm, context, context.questions[i]));
  }
  QUIRE_TRY_STATUS(llm.clear_prefix_cache());
  QUIRE_TRY_STATUS(read_context(llm, context, measured));
  for (std::size_t i = 0; i < context.questions.size(); ++i) {
    QUIRE_TRY(measured.rows[i].warm, ask(llm, context, context.questions[i]));
  }
  return measured;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n");
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

// Prints the table; returns whether all answers are right and warm equals cold.
bool report(const Context& context, const Measured& measured) {
  std::printf(
      "\n%zu cards, %lld tokens, computed once in %.0f ms. Each question, cold (all of it "
      "computed)\n"
      "and warm (the cards' KV reused):\n\n",
      context.cards.size(), static_cast<long long>(measured.context_tokens),
      measured.context_seconds * 1e3);
  std::printf("%-52s %10s %10s %10s %10s %7s\n", "", "computed", "reused", "cold ms", "warm ms",
              "");
  bool all_right = true;
  bool all_equal = true;
  std::int64_t cold_tokens = 0;
  std::int64_t warm_tokens = measured.context_tokens;
  for (std::size_t i = 0; i < measured.rows.size(); ++i) {
    const Question& question = context.questions[i];
    const auto& [cold, warm] = measured.rows[i];
    const bool right = trimmed(warm.text) == question.answer;
    all_right = all_right && right;
    all_equal = all_equal && cold.token_ids == warm.token_ids;
    const std::int64_t computed = warm.usage.prompt_tokens - warm.usage.cached_tokens;
    cold_tokens += cold.usage.prompt_tokens - cold.usage.cached_tokens;
    warm_tokens += computed;
    std::printf("%-52s %10lld %10lld %10.1f %10.1f %6.0fx\n", question.text.c_str(),
                static_cast<long long>(computed), static_cast<long long>(warm.usage.cached_tokens),
                cold.timing.first_token_seconds * 1e3, warm.timing.first_token_seconds * 1e3,
                cold.timing.first_token_seconds / warm.timing.first_token_seconds);
    const std::string verdict = right ? "right" : "wrong: " + question.answer;
    std::printf("    %s  (%s)\n", trimmed(warm.text).c_str(), verdict.c_str());
  }
  std::printf("\nprompt tokens computed: %lld cold, %lld warm, the cards included (%.1fx fewer)\n",
              static_cast<long long>(cold_tokens), static_cast<long long>(warm_tokens),
              static_cast<double>(cold_tokens) / static_cast<double>(warm_tokens));
  std::printf("answers right: %s; cold and warm gave the same tokens: %s\n",
              all_right ? "all" : "NOT ALL", all_equal ? "yes" : "NO");
  return all_right && all_equal;
}

int fail(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return 1;
}

int run(const std::string& model, const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    return fail("cannot read \"" + path + "\"");
  }
  const Context context = parse_context(line);
  std::printf("Quire %s, model %s\n", quire::version(), model.c_str());
  auto llm = LLM::open(model);
  if (!llm.ok()) {
    return fail(llm.error().message);
  }
  const auto measured = measure(llm.value(), context);
  if (!measured.ok()) {
    return fail(measured.error().message);
  }
  return report(context, measured.value()) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: quire_demo MODEL CONTEXT.jsonl\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
