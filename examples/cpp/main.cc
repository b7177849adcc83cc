// A program outside Quire's tree: asks one model two questions about the same text and shows that
// the second one reuses the KV of the first.
//
//   cmake -S . -B build && cmake --build build && build/ask MODEL
#include <quire/quire.h>

#include <cstdio>
#include <string>

namespace {

// One question through the model's chat template, greedily.
quire::Status ask(quire::LLM& llm, const std::string& question) {
  const std::string messages =
      R"([{"role": "user", "content": )" + quire::json_string(question) + "}]";
  const std::string variables =
      R"({"documents": [{"text": "Card 7. Ada trades in apples. They live in Foxley."},)"
      R"( {"text": "Card 9. Ruben owns a coat of felt. Their cousin is Ada."}]})";
  QUIRE_TRY(const quire::GenerationOutput output,
            llm.chat(messages, {.temperature = 0, .max_tokens = 16}, variables));
  std::printf("%s%s (%lld of %lld prompt tokens reused)\n", question.c_str(), output.text.c_str(),
              static_cast<long long>(output.usage.cached_tokens),
              static_cast<long long>(output.usage.prompt_tokens));
  return {};
}

quire::Status run(const std::string& model) {
  QUIRE_TRY(quire::LLM llm, quire::LLM::open(model, {.block_tokens = 16}));
  QUIRE_TRY_STATUS(ask(llm, "What does Ada trade in?"));
  return ask(llm, "Where does the cousin of Ruben live?");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ask MODEL\n");
    return 2;
  }
  const quire::Status status = run(argv[1]);
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
    return 1;
  }
  return 0;
}
