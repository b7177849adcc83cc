// Answers of each family and their parts. The marks are those that the chat templates in the
// repositories of the models write; the parts are written down by hand.
#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/chat.h"
#include "quire/text/answer/answer_test_support.h"

namespace quire::text::answer {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;  // names and arguments

const char* const kTools = R"([{"type":"function","function":{"name":"weather","parameters":
  {"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}])";

struct Case {
  const char* name;
  Speaker speaker;
  std::string prompt, answer;
  std::string thinking, content;
  Calls calls = {};
};

const Speaker kQwen3{"{{ '<think>\\n' + r + '\\n</think>\\n\\n' }}{{ '<tool_call>\\n' }}",
                     {"<|im_start|>", "<|im_end|>"},
                     kTools};
const Speaker kQwen35{
    "{{ '<think>' }}</think><tool_call>\\n<function=' + n + '>\\n<parameter=' + k + '>\\n",
    {"<|im_start|>", "<|im_end|>"},
    kTools};
const Speaker kGlm{"{{ '</think>' }}<tool_call>{n}<arg_key>{k}</arg_key><arg_value>{v}</arg_value>",
                   {"<|assistant|>", "<|user|>"},
                   kTools};
const Speaker kDeepSeek{
    "{{ '<think>\\n' }}{{ content.split('</think>')[-1] }}<｜tool▁calls▁begin｜>",
    {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
    kTools};
const Speaker kLfm{
    "<think></think>{{- \"<|tool_call_start|>[\" + calls + \"]<|tool_call_end|>\" }}",
    {"<|im_start|>", "<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>"},
    kTools};
const Speaker kLfmPlain{"{{ tools | tojson }}", kLfm.specials, kTools};
const Speaker kGptOss{"<|start|>assistant<|channel|>final<|message|>",
                      {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>",
                       "<|return|>", "<|call|>"},
                      kTools};
const Speaker kGemma{
    "'<|channel>thought\\n' '<|tool_call>call:' + name + '{' '}<tool_call|>'",
    {"<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"},
    kTools};
const Speaker kLlama{"<|start_header_id|>{{ '{\"name\": ' }}{{ '\"parameters\": ' }}<|python_tag|>",
                     {"<|eot_id|>", "<|python_tag|>"},
                     kTools};
const Speaker kMistral{"[TOOL_CALLS][", {"[TOOL_CALLS]", "</s>"}, kTools};
const Speaker kMinistral{"[THINK][/THINK][TOOL_CALLS]name[ARGS]",
                         {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "</s>"},
                         kTools};
const Speaker kPhi{"<|tool_call|>[ ]<|/tool_call|>", {"<|tool_call|>", "<|/tool_call|>"}, kTools};
const Speaker kNemotron{"<TOOLCALL>[ ]</TOOLCALL>", {"<SPECIAL_12>"}, kTools};
const Speaker kPlain{"{{ messages[0].content }}", {"<s>", "</s>"}, kTools};

Speaker without_tools(Speaker speaker) {
  speaker.tools = "";
  return speaker;
}

const std::string kWeather = R"({"city":"Ulm","days":3})";

std::vector<Case> thinking_cases() {
  return {
      {"no marks at all", kPlain, "", "a <think>b</think>\n", "", "a <think>b</think>\n"},
      {"plain text of a model with marks", kQwen3, "<|im_start|>assistant\n",
       " Hi,\n\n you.\n<|im_end|>", "", " Hi,\n\n you.\n"},
      {"Qwen3 thinks", kQwen3, "<|im_start|>assistant\n",
       "<think>\nOne.\n\nTwo.\n</think>\n\nThe end.<|im_end|>", "One.\n\nTwo.", "The end."},
      {"Qwen3 with thinking closed by the template", kQwen3,
       "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Hi.<|im_end|>", "", "Hi."},
      {"the template opens thinking", kQwen3, "<|im_start|>assistant\n<think>\n",
       "One.\n</think>\n\nTwo.", "One.", "Two."},
      {"the model opens what the template has opened", kDeepSeek, "<｜Assistant｜><think>\n",
       "<think>\nOne.</think>Two.<｜end▁of▁sentence｜>", "One.", "Two."},
      {"thinking that length ends", kQwen3, "", "<think>\nOne. Tw", "One. Tw", ""},
      {"an empty block of thinking", kQwen3, "", "<think>\n\n</think>\n\nTwo.", "", "Two."},
      {"an answer that speaks of the marks", kQwen3, "", "The marks <think> and </think> are two.",
       "", "The marks <think> and </think> are two."},
      {"marks that are cut at the end", kQwen3, "", "a <tool_cal", "", "a <tool_cal"},
  };
}

std::vector<Case> hermes_cases() {
  return {
      {"Hermes: text, then calls",
       kQwen3,
       "",
       "Let me see.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", "
       "\"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n"
       "</tool_call><|im_end|>",
       "",
       "Let me see.",
       {{"weather", kWeather}, {"now", "{}"}}},
      {"Hermes: thinking, call, text",
       kQwen3,
       "",
       "<think>\nHm.\n</think>\n\n<tool_call>{\"name\":\"now\"}</tool_call>\nDone.",
       "Hm.",
       "Done.",
       {{"now", "{}"}}},
      {"Hermes: a closing mark inside of a text",
       kQwen3,
       "",
       R"(<tool_call>{"name":"say","arguments":{"t":"a </tool_call> b"}}</tool_call>)",
       "",
       "",
       {{"say", R"({"t":"a </tool_call> b"})"}}},
      {"Hermes: no JSON stays text, and the next call counts",
       kQwen3,
       "",
       "<tool_call>\nweather(Ulm)\n</tool_call> so <tool_call>{\"name\":\"now\"}</tool_call>",
       "",
       "<tool_call>\nweather(Ulm)\n</tool_call> so",
       {{"now", "{}"}}},
      {"Hermes: an open quote stays text, and the next call counts",
       kQwen3,
       "",
       "<tool_call>{\"name</tool_call> so <tool_call>{\"name\":\"now\"}</tool_call>",
       "",
       "<tool_call>{\"name</tool_call> so",
       {{"now", "{}"}}},
      {"Hermes: arguments that are a list stay text", kQwen3, "",
       R"(<tool_call>{"name":"now","arguments":[1]}</tool_call>)", "",
       R"(<tool_call>{"name":"now","arguments":[1]}</tool_call>)"},
      {"Hermes: a call without its closing mark",
       kQwen3,
       "",
       R"(<tool_call>{"name":"now","arguments":{}}<|im_end|>)",
       "",
       "",
       {{"now", "{}"}}},
      {"Hermes: a call that length ends stays text", kQwen3, "", R"(<tool_call>{"name":"now")", "",
       R"(<tool_call>{"name":"now")"},
      {"Hermes: without tools calls stay text", without_tools(kQwen3), "",
       R"(<tool_call>{"name":"now"}</tool_call>)", "", R"(<tool_call>{"name":"now"}</tool_call>)"},
  };
}

std::vector<Case> tag_cases() {
  return {
      {"Qwen3.5: types are those of the schema",
       kQwen35,
       "<|im_start|>assistant\n<think>\n",
       "Hm.\n</think>\n\nSo:\n\n<tool_call>\n<function=weather>\n<parameter=city>\n89073\n"
       "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=more>\n{\"a\": [1, true]}\n"
       "</parameter>\n<parameter=note>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>",
       "Hm.",
       "So:",
       {{"weather", R"({"city":"89073","days":3,"more":{"a":[1,true]},"note":"two\nlines"})"}}},
      {"Qwen3.5: a parameter that is not closed stays text", kQwen35, "",
       "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</function>\n</tool_call>", "",
       "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</function>\n</tool_call>"},
      {"GLM: keys and values",
       kGlm,
       "<|assistant|><think>",
       "Hm.</think><tool_call>weather<arg_key>city</arg_key><arg_value>Ulm</arg_value>"
       "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
       "Hm.",
       "",
       {{"weather", kWeather}}},
      {"GLM: a function without arguments",
       kGlm,
       "<|assistant|></think>",
       "<tool_call>now</tool_call>",
       "",
       "",
       {{"now", "{}"}}},
      {"DeepSeek V3.1: calls with marks of their own",
       kDeepSeek,
       "<｜Assistant｜></think>",
       "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Ulm\", "
       "\"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
       "",
       "So.",
       {{"weather", kWeather}, {"now", "{}"}}},
      {"DeepSeek V3: a block of code",
       kDeepSeek,
       "<｜Assistant｜>",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "",
       "",
       {{"now", "{}"}}},
      {"LFM2: calls as Python",
       kLfm,
       "<|im_start|>assistant\n",
       "<think>Hm.</think><|tool_call_start|>[weather(city=\"Ulm\", days=3), "
       "now(deep={'a': [True, None, -1.5e3], 'b': 'it\\'s "
       "\\u00fc'})]<|tool_call_end|>Wait.<|im_end|>",
       "Hm.",
       "Wait.",
       {{"weather", kWeather}, {"now", "{\"deep\":{\"a\":[true,null,-1500.0],\"b\":\"it's ü\"}}"}}},
      {"LFM2: an expression stays text", kLfm, "", "<|tool_call_start|>[f(1 + 2)]<|tool_call_end|>",
       "", "[f(1 + 2)]"},
  };
}

std::vector<Case> channel_cases() {
  return {
      {"gpt-oss: analysis and final", kGptOss, "<|end|><|start|>assistant",
       "<|channel|>analysis<|message|>One.\nTwo.<|end|><|start|>assistant<|channel|>final"
       "<|message|>The end.<|return|>",
       "One.\nTwo.", "The end."},
      {"gpt-oss: a call on the channel commentary",
       kGptOss,
       "<|start|>assistant",
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.weather <|constrain|>json<|message|>{\"city\": \"Ulm\", \"days\": 3}<|call|>",
       "Hm.",
       "",
       {{"weather", kWeather}}},
      {"gpt-oss: a recipient before the channel, and a preamble",
       kGptOss,
       "<|start|>assistant",
       "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now"
       "<|channel|>commentary json<|message|>{}<|call|>",
       "",
       "I look.",
       {{"now", "{}"}}},
      {"gpt-oss: a call that is no JSON stays text", kGptOss, "<|start|>assistant",
       "<|channel|>analysis to=python<|message|>print(1)<|call|>", "", "print(1)"},
      {"gpt-oss: blocks are apart", kGptOss, "<|start|>assistant",
       "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>"
       "Two.<|end|><|start|>assistant<|channel|>final<|message|>The end.",
       "One.\n\nTwo.", "The end."},
      {"gpt-oss: an answer without a channel", kGptOss, "<|start|>assistant", "Hello.<|return|>",
       "", "Hello."},
      {"gpt-oss: the prompt ends within a message", kGptOss,
       "<|start|>assistant<|channel|>final<|message|>The", " end.<|return|>", "", " end."},
      {"Gemma 4: thinking on a channel", kGemma, "<|turn>model\n",
       "<|channel>thought\nOne.\n<channel|>The end.<turn|>", "One.", "The end."},
      {"Gemma 4: thinking closed by the template", kGemma,
       "<|turn>model\n<|channel>thought\n<channel|>", "The end.<turn|>", "", "The end."},
      {"Gemma 4: a call",
       kGemma,
       "<|turn>model\n",
       "<|channel>thought\nHm.<channel|><|tool_call>call:weather{city:<|\"|>Ulm<|\"|>,days:3}"
       "<tool_call|><|tool_call>call:now{deep:{<|\"|>a "
       "b<|\"|>:[true,<|\"|>{}\"<|\"|>]}}<tool_call|>",
       "Hm.",
       "",
       {{"weather", kWeather}, {"now", R"({"deep":{"a b":[true,"{}\""]}})"}}},
      {"Gemma 4: marks that the text only spells", kGemma, "", "Its mark is <|tool_cal", "",
       "Its mark is <|tool_cal"},
  };
}

std::vector<Case> list_cases() {
  return {
      {"Llama 3: the answer is a call",
       kLlama,
       "",
       R"({"name": "weather", "parameters": {"city": "Ulm", "days": 3}}<|eot_id|>)",
       "",
       "",
       {{"weather", kWeather}}},
      {"Llama 3: another JSON stays text", kLlama, "", "{\"city\": \"Ulm\"} \n<|eot_id|>", "",
       "{\"city\": \"Ulm\"} \n"},
      {"Llama 3: several calls",
       kLlama,
       "",
       R"({"name":"now","parameters":{}}; {"name":"now","parameters":{}})",
       "",
       "",
       {{"now", "{}"}, {"now", "{}"}}},
      {"Llama 3: a function of its own",
       kLlama,
       "",
       R"(<|python_tag|>brave_search.call(query="Ulm")<|eot_id|>)",
       "",
       "",
       {{"brave_search", R"({"query":"Ulm"})"}}},
      {"Llama 3: a program stays text", kLlama, "", "<|python_tag|>print(1)", "", "print(1)"},
      {"Mistral: a list with ids",
       kMistral,
       "",
       R"([TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm", "days": 3}, "id": "abcdefghi"}]</s>)",
       "",
       "",
       {{"weather", kWeather}}},
      {"Mistral: names and arguments",
       kMinistral,
       "",
       "[THINK]Hm.[/THINK]So.[TOOL_CALLS]weather[ARGS]{\"city\": \"Ulm\", \"days\": 3}"
       "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}</s>",
       "Hm.",
       "So.",
       {{"weather", kWeather}, {"now", "{}"}}},
      {"Nemotron Nano 2: a list",
       kNemotron,
       "",
       R"(So. <TOOLCALL>[{"name": "now", "arguments": {}}]</TOOLCALL><SPECIAL_12>)",
       "",
       "So.",
       {{"now", "{}"}}},
      {"LFM2: marks that the tokenizer alone has",
       kLfmPlain,
       "",
       "<|tool_call_start|>[now()]<|tool_call_end|>",
       "",
       "",
       {{"now", "{}"}}},
      {"Phi-4-mini: a list",
       kPhi,
       "",
       R"(<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>)",
       "",
       "",
       {{"now", "{}"}}},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& some :
       {thinking_cases(), hermes_cases(), tag_cases(), channel_cases(), list_cases()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Calls named(const AnswerParts& parts) {
  Calls calls;
  for (const ToolCall& call : parts.tool_calls) {
    calls.emplace_back(call.name, call.arguments_json);
  }
  return calls;
}

void expect_parts(const Case& c, const AnswerParts& parts) {
  EXPECT_EQ(parts.thinking, c.thinking) << c.name;
  EXPECT_EQ(parts.content, c.content) << c.name;
  EXPECT_EQ(named(parts), c.calls) << c.name;
}

TEST(AnswerStyles, WholeAnswersHaveThePartsWrittenDown) {
  for (const Case& c : cases()) {
    expect_parts(c, c.speaker.split(c.prompt, c.answer, [] { return 1 << 20; }));
  }
}

TEST(AnswerStyles, TokenByTokenGivesTheSameParts) {
  for (const Case& c : cases()) {
    expect_parts(c, c.speaker.split(c.prompt, c.answer, [] { return 1; }));
  }
}

TEST(AnswerStyles, AnyCutGivesTheSameParts) {
  std::mt19937 random(1);
  for (const Case& c : cases()) {
    for (int i = 0; i < 5; ++i) {
      expect_parts(c, c.speaker.split(c.prompt, c.answer, [&] { return 1 + random() % 7; }));
    }
  }
}

// Deletes, repeats and swaps pieces of an answer.
std::string mutated(std::string text, std::mt19937& random) {
  for (std::size_t i = 0; i < 1 + random() % 4 && text.size() > 1; ++i) {
    const std::size_t begin = random() % text.size();
    const std::size_t count = random() % std::min<std::size_t>(text.size() - begin, 24);
    const std::string piece = text.substr(begin, count);
    if (random() % 2 == 0) {
      text.erase(begin, count);
    }
    text.insert(random() % (text.size() + 1), random() % 3 == 0 ? "" : piece);
  }
  return text;
}

TEST(AnswerStyles, MutatedAnswersHaveTheSamePartsHoweverTheyAreCut) {
  std::mt19937 random(2);
  for (const Case& c : cases()) {
    for (int i = 0; i < 40; ++i) {
      const std::string answer = mutated(c.answer, random);
      const AnswerParts whole = c.speaker.split(c.prompt, answer, [] { return 1 << 20; });
      const AnswerParts cut = c.speaker.split(c.prompt, answer, [&] { return 1 + random() % 3; });
      EXPECT_EQ(cut.thinking, whole.thinking) << answer;
      EXPECT_EQ(cut.content, whole.content) << answer;
      EXPECT_EQ(named(cut), named(whole)) << answer;
      EXPECT_EQ(cut.thinking_tokens, whole.thinking_tokens) << answer;
    }
  }
}

TEST(AnswerStyles, IdsOfCallsAreGivenOrMadeAndDiffer) {
  const auto split = [](const Speaker& speaker, const std::string& prompt,
                        const std::string& answer) {
    return speaker.split(prompt, answer, [] { return 3; }).tool_calls;
  };
  const std::string two =
      R"(<tool_call>{"name":"now"}</tool_call><tool_call>{"name":"now"}</tool_call>)";
  const auto calls = split(kQwen3, "a", two);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_TRUE(calls[0].id.starts_with("call_"));
  EXPECT_EQ(calls[0].id.size(), 29U);
  EXPECT_NE(calls[0].id, calls[1].id);
  EXPECT_EQ(split(kQwen3, "a", two)[0].id, calls[0].id);
  EXPECT_NE(split(kQwen3, "b", two)[0].id, calls[0].id);
  const auto given =
      split(kMinistral, "", "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[CALL_ID]123456789[ARGS]{}");
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(given[0].id.size(), 9U);
  EXPECT_EQ(given[1].id, "123456789");
}

TEST(AnswerStyles, TokensOfThinkingCountFromTheOneThatOpensItOn) {
  const auto tokens = [](const Speaker& speaker, const std::string& prompt,
                         const std::string& answer) {
    return speaker.split(prompt, answer, [] { return 2; }).thinking_tokens;
  };
  EXPECT_EQ(tokens(kGemma, "", "<|channel>thought\nab<channel|>cd"), 5);
  EXPECT_EQ(tokens(kMinistral, "", "[THINK]ab[/THINK]cd"), 4);
  EXPECT_EQ(tokens(kQwen3, "<think>\n", "ab</think>cd"), 10);
  EXPECT_EQ(tokens(kQwen3, "", "ab"), 0);
}

TEST(AnswerStyles, AStopStringEndsThePartThatItIsIn) {
  for (const int step : {1, 4, 1000}) {
    const AnswerParts parts = kGptOss.split(
        "<|start|>assistant",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two"
        " STOP",
        [&] { return step; }, " STOP");
    EXPECT_EQ(parts.thinking, "One.");
    EXPECT_EQ(parts.content, "Two");
  }
}

TEST(AnswerStyles, ALongCallStaysTextAndHoldsBoundedMemory) {
  const std::string body((std::size_t{1} << 20) + 100, 'x');
  for (const std::size_t step : {std::size_t{4096}, std::size_t{1} << 22}) {
    const AnswerParts parts =
        kQwen3.split("", "<tool_call>" + body + "</tool_call> so", [&] { return step; });
    EXPECT_TRUE(parts.content == "<tool_call>" + body + "</tool_call> so") << step;
    EXPECT_TRUE(parts.tool_calls.empty());
  }
}

TEST(AnswerStyles, DeepNestingStaysText) {
  const std::string deep(100'000, '[');
  const std::string python = "<|tool_call_start|>[f(a=" + deep + ")]<|tool_call_end|>";
  EXPECT_TRUE(kLfm.split("", python, [] { return 1 << 20; }).tool_calls.empty());
  const std::string hermes =
      "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":" + deep + "</tool_call>";
  EXPECT_TRUE(kQwen3.split("", hermes, [] { return 1 << 20; }).tool_calls.empty());
}

}  // namespace
}  // namespace quire::text::answer
