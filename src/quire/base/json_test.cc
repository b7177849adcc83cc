#include "quire/base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"

namespace quire::base {
namespace {

Json object_of(std::string_view text) {
  Result<Json> value = parse_json(text, "test");
  EXPECT_TRUE(value.ok());
  return std::move(value).value();
}

TEST(ParseJson, ReadsAValue) {
  const Result<Json> value = parse_json(R"({"a": [1, true, null, "x"]})", "test");
  ASSERT_TRUE(value.ok());
  const JsonView list = value->view().find("a");
  ASSERT_EQ(list.size(), 4U);
  EXPECT_EQ(list[0].as_int(), 1);
  EXPECT_TRUE(list[1].as_bool());
  EXPECT_TRUE(list[2].is_null());
  EXPECT_EQ(list[3].as_string(), "x");
}

TEST(ParseJson, MalformedTextIsRefusedNamingTheSource) {
  for (const std::string_view text :
       {"", "{", "{\"a\":}", "{} x", "[1,]", "nul", "\"\xff\"", "01", "NaN", "{\"a\" 1}", "'a'"}) {
    const Result<Json> value = parse_json(text, "config.json");
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_EQ(value.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(value.error().message.find("config.json: not valid JSON: "), 0U);
  }
}

TEST(ParseJson, DepthIsBounded) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(64), "test").ok());
  EXPECT_FALSE(parse_json(nested(65), "test").ok());
  EXPECT_FALSE(parse_json(std::string(1'000'000, '['), "test").ok());
}

TEST(ParseJson, NumbersThatWouldBecomeOthersAreRefusedWithTheirDigits) {
  for (const std::string number :
       {"18446744073709551616", "-9223372036854775809", "12345678901234567890123", "1e400"}) {
    const auto value = parse_json(R"([{"id": )" + number + "}]", "messages");
    ASSERT_FALSE(value.ok()) << number;
    EXPECT_EQ(value.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(value.error().message, "messages: the number " + number +
                                         " is beyond 64 bits; give it as a string (key \"id\")");
  }
}

TEST(ParseJson, ANumberThatIsRefusedNamesTheInnermostKeyAroundIt) {
  const auto error = [](std::string_view text) { return parse_json(text, "x").error().message; };
  const std::string said = "x: the number 1E400 is beyond 64 bits; give it as a string";
  EXPECT_EQ(error(R"({"a": {"b": 1}, "c": [[1E400]]})"), said + " (key \"c\")");
  EXPECT_EQ(error(R"({"a": [{"b": {"é\n": 1E400}}], "c": 1})"), said + " (key \"é\\x0a\")");
  EXPECT_EQ(error(R"({"a": {"b": {}}, "c": 2, "d": -0, "e": [1E400, {"f": 1E401}]})"),
            said + " (key \"e\")");
  EXPECT_EQ(error("[1, 1E400]"), said);
}

// Oracle: RFC 8259, section 6, and what Python's json makes of the same texts.
TEST(ParseJson, TakesTheNumbersOfTheStandardAndNoOthers) {
  const std::pair<const char*, double> numbers[] = {{"0E0", 0.0},
                                                    {"0e+0", 0.0},
                                                    {"-0", 0.0},
                                                    {"-0.0", 0.0},
                                                    {"0.0e-5", 0.0},
                                                    {"1E400e", NAN},
                                                    {"1.28E+2", 128},
                                                    {"12800e-2", 128},
                                                    {"1e-400", 0.0},
                                                    {"01", NAN},
                                                    {"+1", NAN},
                                                    {".5", NAN},
                                                    {"5.", NAN},
                                                    {"1e", NAN},
                                                    {"0x10", NAN},
                                                    {"1_000", NAN},
                                                    {"-", NAN},
                                                    {"1E+22", 1e22},
                                                    {"9007199254740993", 9007199254740992}};
  for (const auto& [text, expected] : numbers) {
    const auto json = parse_json(std::string("{\"a\": ") + text + "}", "x");
    EXPECT_EQ(json.ok(), !std::isnan(expected)) << text;
    if (json.ok()) {
      EXPECT_EQ(json->view().find("a").as_double(), expected) << text;
    }
  }
  EXPECT_EQ(object_of(R"({"a": -0})").view().find("a").exact<std::int32_t>(), 0);
  EXPECT_EQ(object_of(R"({"a": 0E0})").view().find("a").exact<std::int32_t>(), 0);
  EXPECT_EQ(object_of(R"({"a": 2.5e1})").view().find("a").exact<std::int64_t>(), 25);
}

// The spelling that stands for NaN inside of the library is a number like others elsewhere.
TEST(ParseJson, NoNumberIsNotANumber) {
  const Json json = object_of(R"({"a": 0e77777777})");
  EXPECT_EQ(json.view().find("a").as_double(), 0.0);
}

TEST(ParseModelJson, ReadsTheConstantsThatPythonWrites) {
  const auto json = parse_model_json(
      R"({"a": NaN, "b": Infinity, "c":-Infinity, "d": [NaN,Infinity, -Infinity], "e": 1.5})",
      "config.json");
  ASSERT_TRUE(json.ok()) << json.error().message;
  const JsonView object = *json;
  EXPECT_TRUE(std::isnan(object.find("a").as_double()));
  EXPECT_EQ(object.find("b").as_double(), INFINITY);
  EXPECT_EQ(object.find("c").as_double(), -INFINITY);
  EXPECT_TRUE(std::isnan(object.find("d")[0].as_double()));
  EXPECT_EQ(object.find("d")[2].as_double(), -INFINITY);
  EXPECT_EQ(object.find("e").as_double(), 1.5);
}

TEST(ParseModelJson, LeavesTheConstantsInStringsAlone) {
  const std::string text = R"({"NaN": "Infinity, NaN \" : -Infinity", "a\\": NaN})";
  const auto json = parse_model_json(text, "config.json");
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_TRUE(json->view().find("NaN") == "Infinity, NaN \" : -Infinity");
  EXPECT_TRUE(std::isnan(json->view().find("a\\").as_double()));
}

TEST(ParseModelJson, TakesTheConstantsAsWholeWordsOnly) {
  for (const std::string_view text :
       {"[nan]", "[NaNs]", "[-NaN]", "[1Infinity]", "[+Infinity]", "[Infinity1]", "NaN NaN",
        "[\"a\"NaN]", "[--Infinity]", "[NaN", "{NaN: 1}"}) {
    const auto json = parse_model_json(text, "config.json");
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.error().message.find("config.json: not valid JSON: "), 0U) << text;
  }
}

// transformers writes 10^30 as the longest text of a tokenizer that names none.
TEST(ParseModelJson, TakesNumbersBeyond64Bits) {
  const auto json = parse_model_json(
      R"({"model_max_length": 1000000000000000019884624838656, "huge": 1e400})", "config.json");
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(json->view().find("model_max_length").as_double(), 1e30);
  EXPECT_FALSE(get_int(*json, "model_max_length", 0).ok());
  EXPECT_FALSE(get_double(*json, "huge", 0).ok());
}

TEST(ParseModelObject, RefusesAnyOtherValueNamingTheFile) {
  EXPECT_TRUE(parse_model_object("{}", "config.json").ok());
  EXPECT_EQ(parse_model_object("[NaN]", "config.json").error().message,
            "config.json: must hold a JSON object");
}

TEST(JsonView, FindTakesNullForAbsent) {
  const Json json = object_of(R"({"a": null, "b": 0})");
  const JsonView object = json;
  EXPECT_TRUE(object.find("a").is_null());
  EXPECT_FALSE(object.find("b").is_null());
  EXPECT_TRUE(object.find("c").is_null());
  EXPECT_TRUE(object.contains("a"));
  EXPECT_FALSE(object.contains("c"));
  EXPECT_TRUE(object.find("b").find("a").is_null());
}

TEST(ParseKeptObject, NumbersComeBackAsTheyWere) {
  const std::string text =
      R"({"a":[-9223372036854775808,18446744073709551615,0.1],"1e999 \"":"9e9999","b":{"c":1E300}})";
  const auto object = parse_kept_object(text, "metadata");
  ASSERT_TRUE(object.ok()) << object.error().message;
  EXPECT_TRUE(parse_json(write_json(*object), "again").value() == *object);
  EXPECT_EQ(object->view().find("a")[0].as_int(), INT64_MIN);
  EXPECT_EQ(object->view().find("a")[1].as_uint(), UINT64_MAX);
}

// Boost.JSON alone is off by the last bit for one of four.
TEST(ParseJson, EveryDoubleIsTheNearestToItsText) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) {
      const std::string text = write_json(Json(value));
      ASSERT_EQ(parse_json(text, "a number").value().view().as_double(), value) << text;
    }
  }
}

TEST(ParseKeptObject, NumbersThatWouldNotAreRefused) {
  for (const std::string number :
       {"18446744073709551616", "-9223372036854775809", "1180591620717411303424", "1e400"}) {
    const auto object = parse_kept_object(R"({"a": {"b": ["7", )" + number + "]}}", "metadata");
    ASSERT_FALSE(object.ok()) << number;
    EXPECT_EQ(object.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(object.error().message, "metadata: the number " + number +
                                          " is beyond 64 bits; give it as a string (key \"b\")");
  }
  EXPECT_EQ(parse_kept_object("[1]", "metadata").error().message, "metadata must be an object");
}

TEST(KeptObject, IsItsTextWithoutBlanks) {
  EXPECT_EQ(kept_object(R"( {"b" : [1, 0.1], "a": null} )", "metadata").value(),
            R"({"b":[1,0.1],"a":null})");
  EXPECT_FALSE(kept_object("[]", "metadata").ok());
}

TEST(KeptObject, FitsIntoAnObjectOfItsKeeper) {
  const auto nested = [](int depth) {
    std::string text = "1";
    for (int i = 0; i < depth; ++i) {
      text = R"({"a":)" + text + "}";
    }
    return text;
  };
  const auto kept = kept_object(nested(60), "metadata");
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_TRUE(parse_json(R"({"kept":)" + *kept + "}", "its keeper").ok());
  EXPECT_FALSE(kept_object(nested(61), "metadata").ok());
}

TEST(MergedObjects, HaveTheMembersOfBothAndTheNewerOfEqualKeys) {
  EXPECT_EQ(merged_objects(R"({"a":1,"b":2})", R"({"c":4,"b":3})"), R"({"a":1,"b":3,"c":4})");
  EXPECT_EQ(merged_objects(R"({"a":1})", "{}"), R"({"a":1})");
  EXPECT_EQ(merged_objects("{}", R"({"a":1})"), R"({"a":1})");
}

TEST(JsonView, WalksInTheOrderOfTheText) {
  const Json json = object_of(R"({"b": [3, "x", null], "a": {}, "c": 1.5})");
  std::string keys;
  for (const auto [key, value] : json.view().members()) {
    keys += key;
  }
  EXPECT_EQ(keys, "bac");
  EXPECT_EQ(json.view().member(2).value.as_double(), 1.5);
  std::vector<JsonKind> kinds;
  for (const JsonView item : json.view().find("b").elements()) {
    kinds.push_back(item.kind());
  }
  EXPECT_EQ(kinds, (std::vector{JsonKind::kInt, JsonKind::kString, JsonKind::kNull}));
}

TEST(JsonView, OtherKindsHaveNoElementsAndNoMembers) {
  for (const std::string_view text : {"null", "1", "\"text\""}) {
    const Json json = parse_json(text, "test").value();
    EXPECT_EQ(json.view().size(), 0U);
    EXPECT_EQ(json.view().elements().begin(), json.view().elements().end());
    EXPECT_EQ(json.view().members().begin(), json.view().members().end());
    EXPECT_FALSE(json.view().contains("a"));
  }
  const Json list = Json::array(1);
  EXPECT_EQ(list.view().members().begin(), list.view().members().end());
}

TEST(JsonView, ExactTakesNumbersThatFit) {
  const Json json =
      parse_json("[-1, 7.0, 0.5, 4294967295, 18446744073709551615, true]", "test").value();
  const JsonView list = json;
  EXPECT_EQ(list[0].exact<std::int32_t>(), -1);
  EXPECT_EQ(list[0].exact<std::uint32_t>(), std::nullopt);
  EXPECT_EQ(list[1].exact<std::int64_t>(), 7);
  EXPECT_EQ(list[2].exact<std::int64_t>(), std::nullopt);
  EXPECT_EQ(list[3].exact<std::int32_t>(), std::nullopt);
  EXPECT_EQ(list[3].exact<std::uint32_t>(), 4294967295U);
  EXPECT_EQ(list[4].exact<std::int64_t>(), std::nullopt);
  EXPECT_EQ(list[4].exact<std::uint64_t>(), UINT64_MAX);
  EXPECT_EQ(list[5].exact<std::int64_t>(), std::nullopt);
}

TEST(JsonView, EqualityLeavesTheOrderOfMembersOut) {
  EXPECT_TRUE(object_of(R"({"a": 1, "b": [2]})") == object_of(R"({"b": [2], "a": 1})"));
  EXPECT_FALSE(object_of(R"({"a": 1})") == object_of(R"({"a": 1, "b": null})"));
  EXPECT_FALSE(object_of(R"({"a": [1, 2]})") == object_of(R"({"a": [2, 1]})"));
  EXPECT_TRUE(JsonView() == Json());
  EXPECT_TRUE(Json("x").view() == "x");
  EXPECT_FALSE(Json(1).view() == "1");
}

TEST(Json, WritesWhatIsBuiltInItsOrder) {
  Json object = Json::object({{"text", "a\"\n\u00e9"},
                              {"numbers", Json::array(-1, 18446744073709551615U, 0.1F, 1e300, 0.0)},
                              {"flag", true},
                              {"none", nullptr},
                              {"empty", Json::object()}});
  object.set("flag", false);
  EXPECT_FALSE(object.add("text", 1));
  EXPECT_TRUE(object.add("ids", Json::list(std::vector<std::int32_t>{7, -8})));
  object.set("names", Json::list(std::vector<std::string>{"x", ""}));
  EXPECT_EQ(write_json(object),
            "{\"text\":\"a\\\"\\n\u00e9\",\"numbers\":[-1,18446744073709551615,"
            "0.10000000149011612,1e+300,0.0],\"flag\":false,\"none\":null,\"empty\":{},"
            "\"ids\":[7,-8],\"names\":[\"x\",\"\"]}");
}

// Oracle: parsing what was written gives the same bits and the same kind.
TEST(Json, WritesDoublesThatReadAsTheSameDoubles) {
  std::mt19937_64 random(7);
  std::vector<double> numbers = {0.0,  -0.0, 1.0,    -1.0,    0.1,     1e-7,
                                 1e21, 1e22, 5e-324, 1.7e308, 123456.0};
  while (numbers.size() < 2000) {
    const auto number = std::bit_cast<double>(random());
    if (std::isfinite(number)) {
      numbers.push_back(number);
    }
  }
  for (const double number : numbers) {
    const std::string text = write_json(Json::array(number));
    EXPECT_EQ(text.find('E'), std::string::npos) << text;
    const Json read = object_of(text);
    ASSERT_EQ(read.view()[0].kind(), JsonKind::kDouble) << text;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(read.view()[0].as_double()),
              std::bit_cast<std::uint64_t>(number))
        << text;
  }
  EXPECT_EQ(write_json(Json::array(0.0, 0.25, 2.0, 1e-7)), "[0.0,0.25,2.0,1e-07]");
}

TEST(Json, MovesLeaveNullAndCopiesStand) {
  Json first = Json::array("a");
  const Json copy = Json::copy(first);
  Json second = std::move(first);
  second.push(2);
  EXPECT_TRUE(first.view().is_null());  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(write_json(second), R"(["a",2])");
  EXPECT_EQ(write_json(copy), R"(["a"])");
  EXPECT_EQ(write_json(Json()), "null");
}

TEST(ReadJsonList, TakesArraysOfOneType) {
  const Json json =
      object_of(R"({"ids": [1, 2.0], "texts": ["a"], "mixed": [1, "a"], "none": []})");
  const JsonView object = json;
  EXPECT_EQ(read_json_list<std::int32_t>(object.find("ids")), (std::vector{1, 2}));
  EXPECT_EQ(read_json_list<std::string>(object.find("texts")), std::vector<std::string>{"a"});
  EXPECT_EQ(read_json_list<std::int32_t>(object.find("mixed")), std::nullopt);
  EXPECT_EQ(read_json_list<std::string>(object.find("mixed")), std::nullopt);
  EXPECT_EQ(read_json_list<std::int32_t>(object.find("none")), std::vector<std::int32_t>());
  EXPECT_EQ(read_json_list<std::int32_t>(object.find("absent")), std::nullopt);
  EXPECT_EQ(read_json_list<std::int32_t>(object), std::nullopt);
}

TEST(GetInt, TakesIntegersHoweverWritten) {
  const Json object = object_of(R"({"a": -3, "b": 4.0, "c": 1e3, "d": 9223372036854775807})");
  EXPECT_EQ(*get_int(object, "a", 0), -3);
  EXPECT_EQ(*get_int(object, "b", 0), 4);
  EXPECT_EQ(*get_int(object, "c", 0), 1000);
  EXPECT_EQ(*get_int(object, "d", 0), INT64_MAX);
  EXPECT_EQ(*get_int(object, "absent", 7), 7);
}

TEST(GetInt, RefusesWhatIsNoIntegerNamingTheKey) {
  const Json object = object_of(
      R"({"half": 0.5, "huge": 1e300, "unsigned": 9223372036854775808, "text": "3", "flag": true,
          "list": [1]})");
  for (const std::string_view key : {"half", "huge", "unsigned", "text", "flag", "list"}) {
    const Result<std::int64_t> value = get_int(object, key, 0);
    ASSERT_FALSE(value.ok()) << key;
    EXPECT_EQ(value.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(value.error().message.find(key), std::string::npos);
  }
  EXPECT_EQ(get_int(object, "text", 0).error().message,
            R"(key "text" must be an integer, not "\"3\"")");
}

TEST(GetDouble, TakesAnyNumber) {
  const Json object = object_of(R"({"a": 1, "b": 0.25, "c": 18446744073709551615})");
  EXPECT_EQ(*get_double(object, "a", 0), 1.0);
  EXPECT_EQ(*get_double(object, "b", 0), 0.25);
  EXPECT_EQ(*get_double(object, "c", 0), 18446744073709551616.0);
  EXPECT_EQ(*get_double(object, "absent", 2.5), 2.5);
  EXPECT_FALSE(get_double(object_of(R"({"a": "1"})"), "a", 0).ok());
}

TEST(GetDouble, RefusesWhatIsNotFiniteNamingTheKey) {
  const Json object = parse_model_json(R"({"a": NaN, "b": Infinity, "c": -Infinity})", "x").value();
  EXPECT_EQ(get_double(object, "a", 0).error().message, R"(key "a" must be a number, not "NaN")");
  EXPECT_EQ(get_double(object, "b", 0).error().message,
            R"(key "b" must be a number, not "Infinity")");
  for (const std::string_view key : {"a", "b", "c"}) {
    EXPECT_FALSE(get_double(object, key, 0).ok()) << key;
    EXPECT_FALSE(get_int(object, key, 0).ok()) << key;
  }
}

TEST(GetBool, TakesOnlyTrueAndFalse) {
  const Json object = object_of(R"({"a": true, "b": 1, "c": null})");
  EXPECT_TRUE(*get_bool(object, "a", false));
  EXPECT_FALSE(get_bool(object, "b", false).ok());
  EXPECT_TRUE(*get_bool(object, "c", true));
}

TEST(GetString, TakesOnlyStrings) {
  const Json object = object_of(R"({"a": "x\u00e9", "b": 1})");
  EXPECT_EQ(*get_string(object, "a", ""), "x\u00e9");
  EXPECT_FALSE(get_string(object, "b", "").ok());
  EXPECT_EQ(*get_string(object, "absent", "fallback"), "fallback");
}

}  // namespace
}  // namespace quire::base
