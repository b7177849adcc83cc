#include "quire/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/result.h"

namespace quire::text {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Spans = std::vector<std::pair<std::string, std::int32_t>>;

const char* const kVariables = R"({
  "messages": [{"role": "user", "content": "Hi <|end|>"}, {"role": "assistant", "content": " ok "},
               {"role": "user", "content": [{"type": "text", "text": "part"}], "n": 7}],
  "tools": [{"name": "f", "args": {"k": [1, true, null]}}],
  "bos_token": "<s>"})";

base::Json variables(std::string_view text = kVariables) {
  return base::parse_json(text, "variables").value();
}

Result<RenderedPrompt> render(std::string_view source, const RenderOptions& options = {}) {
  QUIRE_TRY(const auto parsed, ChatTemplate::parse(source));
  return parsed.render(variables(), options);
}

Spans spans_of(std::string_view source, const RenderOptions& options = {}) {
  const auto prompt = render(source, options);
  EXPECT_TRUE(prompt.ok()) << (prompt.ok() ? "" : prompt.error().message);
  Spans out;
  if (prompt.ok()) {
    for (const auto& span : prompt->spans) {
      out.emplace_back(span.text, span.from.source);
    }
  }
  return out;
}

std::string message_of(std::string_view source) {
  const auto prompt = render(source);
  EXPECT_FALSE(prompt.ok()) << source;
  return prompt.ok() ? "" : prompt.error().message;
}

ErrorCode code_of(std::string_view source) {
  const auto prompt = render(source);
  EXPECT_FALSE(prompt.ok()) << source;
  return prompt.ok() ? ErrorCode::kInternal : prompt.error().code;
}

constexpr std::int32_t kTemplate = Provenance::kTemplate;
constexpr std::int32_t kArgument = Provenance::kArgument;

TEST(Provenance, LiteralsMessagesAndArgumentsAreTold) {
  EXPECT_THAT(spans_of("{{ bos_token }}[{{ messages[0].content }}]{{ messages[1].content }}"),
              ElementsAre(Pair("<s>", kArgument), Pair("[", kTemplate), Pair("Hi <|end|>", 0),
                          Pair("]", kTemplate), Pair(" ok ", 1)));
}

TEST(Provenance, NeighboursOfOneSourceAreOneSpan) {
  EXPECT_THAT(spans_of("a{{ 'b' ~ 'c' }}{# x #}d{{ messages[0].role }}{{ messages[0].role }}"),
              ElementsAre(Pair("abcd", kTemplate), Pair("useruser", 0)));
  EXPECT_TRUE(spans_of("").empty());
  EXPECT_TRUE(spans_of("{{ '' }}{{ messages[0].nothing }}").empty());
}

TEST(Provenance, SurvivesOperationsOnText) {
  EXPECT_THAT(spans_of("{{ messages[1].content | trim }}"), ElementsAre(Pair("ok", 1)));
  EXPECT_THAT(spans_of("{{ ('<' ~ messages[0].content ~ '>')[1:4] }}"),
              ElementsAre(Pair("Hi ", 0)));
  EXPECT_THAT(spans_of("{{ ('x' + messages[0].role + 'y') | upper }}"),
              ElementsAre(Pair("X", kTemplate), Pair("USER", 0), Pair("Y", kTemplate)));
  EXPECT_THAT(spans_of("{{ messages[0].content.split(' ')[1] }}"), ElementsAre(Pair("<|end|>", 0)));
  EXPECT_THAT(spans_of("{{ messages[0].role.replace('s', messages[1].role[0]) }}"),
              ElementsAre(Pair("u", 0), Pair("a", 1), Pair("er", 0)));
  EXPECT_THAT(spans_of("{{ messages | map(attribute='role') | join('-') }}"),
              ElementsAre(Pair("user", 0), Pair("-", kTemplate), Pair("assistant", 1),
                          Pair("-", kTemplate), Pair("user", 2)));
  EXPECT_THAT(spans_of("{{ messages[0].role * 2 }}{{ messages[1].role[-3:] }}"),
              ElementsAre(Pair("useruser", 0), Pair("ant", 1)));
  EXPECT_THAT(spans_of("{{ '{}:{}'.format(messages[0].role, 1) }}{{ '%s' % messages[1].role }}"),
              ElementsAre(Pair("user", 0), Pair(":1", kTemplate), Pair("assistant", 1)));
  EXPECT_THAT(spans_of("{{ (messages[0].content ~ '\n' ~ messages[1].role) | indent(2) }}"),
              ElementsAre(Pair("Hi <|end|>", 0), Pair("\n  ", kTemplate), Pair("assistant", 1)));
}

TEST(Provenance, QuotesAndBracketsOfJsonAndReprAreTheTemplates) {
  EXPECT_THAT(
      spans_of("{{ messages[0] | tojson }}"),
      ElementsAre(Pair("{\"", kTemplate), Pair("role", 0), Pair("\": \"", kTemplate),
                  Pair("user", 0), Pair("\", \"", kTemplate), Pair("content", 0),
                  Pair("\": \"", kTemplate), Pair("Hi <|end|>", 0), Pair("\"}", kTemplate)));
  EXPECT_THAT(spans_of("{{ tools[0].args | tojson }}"),
              ElementsAre(Pair("{\"", kTemplate), Pair("k", kArgument), Pair("\": [", kTemplate),
                          Pair("1", kArgument), Pair(", ", kTemplate), Pair("true", kArgument),
                          Pair(", ", kTemplate), Pair("null", kArgument), Pair("]}", kTemplate)));
  EXPECT_THAT(spans_of("{{ [messages[1].content] }}"),
              ElementsAre(Pair("['", kTemplate), Pair(" ok ", 1), Pair("']", kTemplate)));
}

TEST(Provenance, SurvivesVariablesNamespacesMacrosAndBlocks) {
  EXPECT_THAT(spans_of("{% set ns = namespace(t='') %}{% for m in messages[:2] %}"
                       "{% set ns.t = ns.t + m.role[0] %}{% endfor %}{{ ns.t }}"),
              ElementsAre(Pair("u", 0), Pair("a", 1)));
  EXPECT_THAT(
      spans_of("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[2].content[0].text) }}"),
      ElementsAre(Pair("<", kTemplate), Pair("part", 2), Pair(">", kTemplate)));
  EXPECT_THAT(spans_of("{% set b %}a{{ messages[1].role }}{% endset %}{{ b | length }}{{ b }}"),
              ElementsAre(Pair("10a", kTemplate), Pair("assistant", 1)));
  EXPECT_THAT(spans_of("{% filter upper %}{{ messages[0].role }}{% endfilter %}"),
              ElementsAre(Pair("USER", 0)));
}

TEST(Provenance, NumbersKeepItWhenPrintedAndLoseItWhenComputed) {
  EXPECT_THAT(spans_of("{{ messages[2].n }}{{ messages[2].n + 1 }}"),
              ElementsAre(Pair("7", 2), Pair("8", kTemplate)));
}

TEST(Provenance, RolesTypesOfPartsAndPlainVariablesAreNames) {
  const auto names_of = [](const char* source) {
    std::vector<std::pair<std::string, bool>> out;
    const auto prompt = render(source);
    for (const auto& span : prompt.value().spans) {
      out.emplace_back(span.text, span.from.is_name);
    }
    return out;
  };
  EXPECT_THAT(names_of("{{ messages[0].role }}{{ messages[0].content }}"),
              ElementsAre(Pair("user", true), Pair("Hi <|end|>", false)));
  EXPECT_THAT(names_of("{{ messages[2].content[0].type }}{{ messages[2].content[0].text }}"),
              ElementsAre(Pair("text", true), Pair("part", false)));
  EXPECT_THAT(names_of("{{ bos_token }}{{ tools[0].name }}x"),
              ElementsAre(Pair("<s>", true), Pair("f", false), Pair("x", false)));
}

TEST(Provenance, TrustedVariablesCountAsTheTemplate) {
  RenderOptions options;
  options.trusted_variables = {"bos_token"};
  EXPECT_THAT(spans_of("{{ bos_token }}{{ tools[0].name }}", options),
              ElementsAre(Pair("<s>", kTemplate), Pair("f", kArgument)));
}

TEST(ChatTemplate, ErrorsNameTheLineAndWhatWasExpected) {
  EXPECT_THAT(message_of("a\n{% if x %}"), HasSubstr("line 2"));
  EXPECT_THAT(message_of("a\n{% if x %}"), HasSubstr("endif"));
  EXPECT_THAT(message_of("\n\n{{ 1 + }}"), HasSubstr("line 3: expected an expression"));
  EXPECT_THAT(message_of("{{ (1 }}"), HasSubstr("line 1"));
  EXPECT_THAT(message_of("{% for x of y %}{% endfor %}"), HasSubstr("expected 'in', got \"of\""));
  EXPECT_THAT(message_of("\n{{ raise_exception('stop ' ~ 1) }}"), HasSubstr("line 2: stop 1"));
  EXPECT_THAT(message_of("{{ 1 }}\n{{ nothing.x }}"), HasSubstr("line 2: 'nothing' is undefined"));
  EXPECT_THAT(message_of("{{ 'a' + 1 }}"), HasSubstr("str and int"));
  EXPECT_THAT(message_of("{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ m() }}"),
              HasSubstr("line 2: division by zero"));
  EXPECT_EQ(code_of("{{ raise_exception('x') }}"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("{% if %}"), ErrorCode::kInvalidArgument);
}

// A template, and what the error must name.
const std::pair<const char*, const char*> kNotSupported[] = {
    {"\n{% include 'x' %}", "line 2: tag \"include\""},
    {"{% with a = 1 %}{% endwith %}", "tag \"with\""},
    {"{% raw %}{% endraw %}", "tag \"raw\""},
    {"{% nonsense %}", "tag \"nonsense\""},
    {"{% for x in [] recursive %}{% endfor %}", "recursive loop"},
    {"{% for (a, b), c in [] %}{% endfor %}", "a tuple in parentheses"},
    {"{% set x | upper %}{% endset %}", "a filter of a {% set %} block"},
    {"\n{{ 1 | urlize }}", "line 2: filter 'urlize'"},
    {"{% if true %}{{ 1 | urlize }}{% endif %}", "filter 'urlize'"},
    {"{{ [1] | map('urlize') | list }}", "filter 'urlize'"},
    {"{{ 1 | abs }}", "filter 'abs'"},
    {"{{ [1] | batch(2) }}", "filter 'batch'"},
    {"{{ '<' | escape }}", "filter 'escape'"},
    {"{{ '1' | float }}", "filter 'float'"},
    {"{{ '%s' | format(1) }}", "filter 'format'"},
    {"{{ 1 | round }}", "filter 'round'"},
    {"{{ [1] | sum }}", "filter 'sum'"},
    {"{{ 'x' | truncate(2) }}", "filter 'truncate'"},
    {"{{ 'x' | wordcount }}", "filter 'wordcount'"},
    {"{{ '7' | int(base=16) }}", "parameter 'base' of 'int'"},
    {"{{ '1.5' | int }}", "|int of a text"},
    {"{{ messages | sort(attribute='a.b') }}", "the attribute 'a.b'"},
    {"{{ messages | map(attribute='a', default=1) }}", "|map"},
    {"{{ 'abc' | reverse }}", "|reverse of a string"},
    {"{{ 1 is weird }}", "test 'weird'"},
    {"{{ [1] | select('odd') | list }}", "test 'odd'"},
    {"{{ 1 is divisibleby 2 }}", "test 'divisibleby'"},
    {"{{ 1 is gt 2 }}", "test 'gt'"},
    {"{{ 1 is callable }}", "test 'callable'"},
    {"\n{{ mystery(1) }}", "line 2: function 'mystery'"},
    {"{{ lipsum() }}", "function 'lipsum'"},
    {"{{ dict(a=1) }}", "function 'dict'"},
    {"{{ namespace({'a': 1}) }}", "namespace of a dict"},
    {"{{ strftime_now('%z') }}", "'%z' of strftime_now"},
    {"{{ 'x'.encode() }}", "method 'encode' of str"},
    {"{{ 'x'.find('x') }}", "method 'find' of str"},
    {"{{ 'x'.join([]) }}", "method 'join' of str"},
    {"{{ 'x'.rsplit('x') }}", "method 'rsplit' of str"},
    {"{{ 'x'.zfill(3) }}", "method 'zfill' of str"},
    {"{{ 'x'.startswith('x', 1) }}", "argument 2 of 'startswith'"},
    {"{{ ('x' | safe).strip() }}", "method 'strip' of Markup"},
    {"{{ messages.append(1) }}", "method 'append' of list"},
    {"{{ messages[0].pop('role') }}", "method 'pop' of dict"},
    {"{{ messages[0].update({}) }}", "method 'update' of dict"},
    {"{{ messages.index(1) }}", "method 'index' of list"},
    {"{{ ''.__class__() }}", "method '__class__' of str"},
    {"{{ 'x'.upper }}", "method 'upper' of str"},
    {"{{ namespace() }}", "printing a Namespace"},
    {"{{ range(2) }}", "printing a range"},
    {"{{ [1 | safe] }}", "printing a list"},
    {"{% for x in [1] %}{{ loop.cycle(1) }}{% endfor %}", "loop.cycle"},
    {"{% for x in [1] %}{{ loop.changed(x) }}{% endfor %}", "loop.changed"},
    {"{{ 2 ** 3 }}", "operator '**'"},
    {"{{ 1 < 2 < 3 }}", "a chain of comparisons"},
    {"{{ 1.5 * 2 }}", "'*' of floats"},
    {"{{ [1] * 2 }}", "repeating a list"},
    {"{{ 1 in ([1] | select) }}", "'in' of a generator"},
    {"{{ messages[::2] }}", "a slice with a step"},
    {"{{ {(1, 2): 3} }}", "a tuple as a key"},
    {"{{ '%5d' % 1 }}", "'%5' of a format"},
    {"{{ '{:>5}'.format(1) }}", "'{:' of a format"},
    {"{{ '{}'.format(a=1) }}", "a named argument of format()"},
    {"{{ 0x1F }}", "a number that begins with '0x'"},
    {"{{ '\\x41' }}", "the escape"},
    {"{{ 'a b'.split() }}", "split() without a separator"},
    {"{{ 1.5 | int }}", "|int of a float"},
    {"{{ m(*[1]) }}", "spreading arguments with '*'"},
    {"{% macro m() %}{{ varargs }}{% endmacro %}", "the name 'varargs'"},
    {"{{ self.x }}", "the name 'self'"},
};

TEST(ChatTemplate, WhatIsNotSupportedIsRefusedByName) {
  for (const auto& [source, what] : kNotSupported) {
    EXPECT_EQ(code_of(source), ErrorCode::kUnsupported) << source << ": " << message_of(source);
    EXPECT_THAT(message_of(source),
                AllOf(HasSubstr(what), HasSubstr("is not supported in chat templates")))
        << source;
  }
}

TEST(ChatTemplate, WhatIsNotSupportedAndNotReachedIsNoError) {
  EXPECT_THAT(spans_of("{% if false %}{{ 1 | urlize }}{% endif %}x"), ElementsAre(Pair("x", -1)));
  EXPECT_THAT(spans_of("{{ (1 | urlize) if false else 'x' }}"), ElementsAre(Pair("x", -1)));
}

TEST(ChatTemplate, AnUnknownFilterInALoopThatAnIfSkipsIsNoErrorThoughJinja2RefusesIt) {
  EXPECT_THAT(spans_of("{% if false %}{% for x in [1] %}{{ x | urlize }}{% endfor %}{% endif %}x"),
              ElementsAre(Pair("x", -1)));
}

// jinja2: TypeError, macro 'm' takes no keyword argument 'caller'.
TEST(ChatTemplate, ACallBlockOfAMacroThatNeverLooksItsCallerUpIsAnError) {
  EXPECT_THAT(message_of("{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}"),
              HasSubstr("no keyword argument 'caller'"));
  EXPECT_THAT(spans_of("{% macro m() %}{% if false %}{{ caller() }}{% endif %}x{% endmacro %}"
                       "{% call m() %}y{% endcall %}"),
              ElementsAre(Pair("x", -1)));
}

TEST(ChatTemplate, ARefusedRenderingLeavesTheTemplateAsItWas) {
  const auto parsed = ChatTemplate::parse("{% if bad %}{{ 1 | urlize }}{% endif %}x");
  ASSERT_TRUE(parsed.ok());
  EXPECT_FALSE(parsed->render(variables(R"({"bad": true})")).ok());
  EXPECT_EQ(parsed->render(variables(R"({"bad": false})")).value().text(), "x");
}

TEST(ChatTemplate, TheSandboxForbidsInternals) {
  for (const char* source : {"{{ messages.__class__.x }}", "{% set ns = namespace(_a=1) %}"}) {
    EXPECT_EQ(code_of(source), ErrorCode::kInvalidArgument) << source;
  }
}

TEST(ChatTemplate, TheClockCanBeSet) {
  RenderOptions options;
  options.now = std::chrono::local_days(std::chrono::year(2024) / 2 / 29) + std::chrono::hours(13);
  EXPECT_THAT(spans_of("{{ strftime_now('%d %b %Y %H:%M %A %j') }}", options),
              ElementsAre(Pair("29 Feb 2024 13:00 Thursday 060", kTemplate)));
  EXPECT_THAT(spans_of("{{ strftime_now('%Y') | length }}"), ElementsAre(Pair("4", kTemplate)));
}

TEST(ChatTemplate, IllFormedUtf8IsRefused) {
  EXPECT_THAT(message_of("abc\xff"), HasSubstr("no UTF-8 at byte 3"));
  const auto parsed = ChatTemplate::parse("{{ messages[0].content }}");
  ASSERT_TRUE(parsed.ok());
  const auto bad = base::Json::object(
      {{"messages", base::Json::array(base::Json::object({{"content", "x\xc3"}}))}});
  const auto prompt = parsed->render(bad);
  ASSERT_FALSE(prompt.ok());
  EXPECT_THAT(prompt.error().message, HasSubstr("no UTF-8 at byte 1"));
}

TEST(ChatTemplate, OddVariablesAreValuesOrErrorsNeverCrashes) {
  const auto parsed =
      ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}{{ big }}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->render({}).ok());
  EXPECT_FALSE(parsed->render(variables(R"({"messages": 5})")).ok());
  EXPECT_TRUE(parsed->render(variables(R"({"messages": "text"})")).ok());
  EXPECT_TRUE(parsed->render(variables(R"({"messages": [1, null, "x", []]})")).ok());
  EXPECT_TRUE(parsed->render(variables(R"({"messages": {"a": 1}})")).ok());
  EXPECT_FALSE(parsed->render(variables(R"({"big": 18446744073709551615})")).ok());
  base::Json deep = 1;
  for (int i = 0; i < 1000; ++i) {
    deep = base::Json::array(std::move(deep));
  }
  const auto prompt = parsed->render(base::Json::object({{"big", std::move(deep)}}));
  ASSERT_FALSE(prompt.ok());
  EXPECT_THAT(prompt.error().message, HasSubstr("nest deeper"));
}

// Each would take for ever, or all memory, or all of the stack.
TEST(ChatTemplate, HostileTemplatesEndWithAnError) {
  const std::string a_lot =
      "{% set ns = namespace(s='ab', l=[1, 2], d={}, n=0) %}"
      "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
  const std::vector<std::string> hostile = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor "
      "%}",
      "{{ 'x' * 1000000000 }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{{ range(1000000000) }}",
      "{{ range(-9223372036854775807, 9223372036854775807) }}",
      "{{ 9223372036854775807 + 1 }}",
      a_lot,
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=1) %}{% for i in range(9999) %}{% set ns.l = {'k': ns.l} %}{% "
      "endfor "
      "%}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[], k=[]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% set ns.k = [ns.k, ns.k] %}{% endfor %}{{ ns.l == ns.k }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l | tojson(indent=2) }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{% for x in [1] if a() %}{% endfor "
      "%}{% endmacro %}{{ a() }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 1000000).replace('', 'b' * 1000) }}",
      "{{ 'a' | indent(999999999999) }}",
      "{{ strftime_now('%999999999d') }}",
      "{{ strftime_now('%A' * 1000) }}",
      "{{ [1] | tojson(indent=999999999999) }}",
      "{{ ('a' * 9999999) | list | map('upper') | list | length }}",
      "{% set l = ('ab' * 30000) | list %}{{ l | map('replace', 'a', 'b' * 100000) | join | length "
      "}}",
      "{{ range(99999) | unique | list | length }}",
      "{{ range(99999) | map('replace', '', 'x' * 1000) | sort | list | length }}",
      "{% set l = range(99999) | list %}{% for i in l %}{% if -1 in l %}{% endif %}{% endfor %}",
      "{% set x = ('x' * 100000) %}{% for i in range(99999) %}{% if x == ('x' * 100000) %}{% endif "
      "%}{% endfor %}",
      "{% set x = 'a' * 20000000 %}{% for i in range(99999) %}{{ x.replace('b', 'c') }}{% endfor "
      "%}",
  };
  RenderOptions options;
  options.max_steps = 2'000'000;
  for (const auto& source : hostile) {
    const auto prompt = render(source, options);
    ASSERT_FALSE(prompt.ok()) << source;
    EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument) << prompt.error().message;
  }
}

TEST(ChatTemplate, HostileNestingIsRefused) {
  const auto repeat = [](std::string_view what, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) {
      out += what;
    }
    return out;
  };
  constexpr int kMany = 50'000;
  for (const std::string& inside :
       {repeat("(", kMany), repeat("[", kMany), repeat("{1:", kMany), repeat("not ", kMany),
        repeat("-", kMany), "1" + repeat("+1", kMany), "1" + repeat("*1", kMany),
        "1" + repeat(" if 1 else 1", kMany), "1" + repeat(" and 1", kMany),
        "x" + repeat(".x", kMany), "x" + repeat("[0]", kMany), "x" + repeat("|trim", kMany),
        "x" + repeat("()", kMany), "1" + repeat(" is defined", kMany), repeat("x(", kMany),
        repeat("x|trim(", kMany)}) {
    EXPECT_FALSE(render("{{ " + inside + " }}").ok()) << inside.substr(0, 20);
  }
  for (const char* tag : {"{% if 1 %}", "{% for x in y %}", "{% macro m() %}", "{% set x %}",
                          "{% call x() %}", "{% filter trim %}", "{% generation %}"}) {
    EXPECT_FALSE(render(repeat(tag, kMany)).ok()) << tag;
  }
  EXPECT_FALSE(render("{% set " + repeat("(", kMany) + "x").ok());
  // Long, but not deep.
  EXPECT_TRUE(render("{{ 1" + repeat(" ~ 1", kMany) + " }}").ok());
  EXPECT_TRUE(render("{% if 0 %}" + repeat("{% elif 0 %}", 10'000) + "{% endif %}").ok());
  EXPECT_FALSE(render(std::string(2 << 20, 'x')).ok());
}

TEST(ChatTemplate, TheDefaultBoundsEndAnEndlessTemplateToo) {
  EXPECT_THAT(
      message_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
      HasSubstr("more than 20000000 steps"));
}

TEST(ChatTemplate, BoundsCanBeChosen) {
  RenderOptions options;
  options.max_output_bytes = 100;
  const auto prompt = render("{{ 'x' * 101 }}", options);
  ASSERT_FALSE(prompt.ok());
  EXPECT_THAT(prompt.error().message, HasSubstr("longer than 100 B"));
  options = {};
  options.max_steps = 200;
  EXPECT_FALSE(render("{% for x in range(100) %}{% endfor %}", options).ok());
  EXPECT_TRUE(render("{% for x in range(10) %}{% endfor %}", options).ok());
}

TEST(ChatTemplate, ThreadsRenderTheSameTemplateAtOnce) {
  const auto parsed = ChatTemplate::parse(
      "{% macro m(x) %}[{{ x | upper }}]{% endmacro %}{% for m_ in messages %}{{ m(m_.role) }}"
      "{{ m_ | tojson }}{% endfor %}");
  ASSERT_TRUE(parsed.ok());
  const base::Json input = variables();
  const auto expected = parsed->render(input);
  ASSERT_TRUE(expected.ok());
  std::vector<std::thread> threads;
  std::vector<int> equal(8, 0);
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto prompt = parsed->render(input);
        equal[t] += prompt.ok() && prompt->text() == expected->text() ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(equal, testing::Each(50));
}

TEST(ChatTemplate, CanBeMovedAndGivesItsSource) {
  auto first = ChatTemplate::parse("{{ 'x' }}");
  ASSERT_TRUE(first.ok());
  const ChatTemplate second = std::move(*first);
  EXPECT_EQ(second.source(), "{{ 'x' }}");
  EXPECT_TRUE(second.render({}).ok());
}

// Oracle: jinja2.meta.find_undeclared_variables, but for what only some paths set.
TEST(ChatTemplate, TellsWhichVariablesItReads) {
  const auto variables_of = [](std::string_view source) {
    return ChatTemplate::parse(source).value().variables();
  };
  EXPECT_THAT(variables_of("text"), ElementsAre());
  EXPECT_THAT(variables_of("{{ a.b[c](d, e=f)|join(g) ~ (h if i is eq(j) else -k) }}"),
              ElementsAre("a", "c", "d", "f", "g", "h", "i", "j", "k"));
  EXPECT_THAT(
      variables_of("{% for m in messages if m.x != y %}{{ loop.index }}{{ m }}{% endfor %}"),
      ElementsAre("messages", "y"));
  EXPECT_THAT(variables_of("{% set ns = namespace(x=z) %}{% set ns.x = 1 %}{{ ns.x }}"),
              ElementsAre("z"));
  EXPECT_THAT(variables_of("{% if a is defined %}{% set b = 1 %}{% endif %}{{ b }}"),
              ElementsAre("a", "b"));
  EXPECT_THAT(variables_of("{% set a, b = c %}{{ a ~ b }}{% set d = d|default(1) %}"),
              ElementsAre("c", "d"));
  EXPECT_THAT(variables_of("{% macro m(a, b=c) %}{{ a ~ b ~ d ~ caller() }}{% endmacro %}"
                           "{% call m(e) %}{{ f }}{% endcall %}{{ a }}"),
              ElementsAre("a", "c", "d", "e", "f"));
  EXPECT_THAT(
      variables_of("{% filter trim %}{{ g }}{% endfilter %}{% set h %}{{ i }}{% endset %}{{ h }}"),
      ElementsAre("g", "i"));
}

TEST(ChatTemplate, TellsTheNamesAndStringsOfItsTags) {
  const auto words_of = [](std::string_view source) {
    return ChatTemplate::parse(source).value().words();
  };
  EXPECT_THAT(words_of("text 'role' {# name #}"), ElementsAre());
  EXPECT_THAT(words_of("{{ m.role ~ m['con' ~ \"tent\"] }}role"),
              ElementsAre("con", "m", "role", "tent"));
  EXPECT_THAT(words_of("{% if m['role'] == 'user' %}{{ m.role }}{% endif %}"),
              ElementsAre("endif", "if", "m", "role", "user"));
}

}  // namespace
}  // namespace quire::text
