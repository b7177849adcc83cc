#include "quire/base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::base {
namespace {

json::object object_of(std::string_view text) {
  const Result<json::value> value = parse_json(text, "test");
  EXPECT_TRUE(value.ok());
  return value->as_object();
}

TEST(ParseJson, ReadsAValue) {
  const Result<json::value> value = parse_json(R"({"a": [1, true, null, "x"]})", "test");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->as_object().at("a").as_array().size(), 4U);
}

TEST(ParseJson, MalformedTextIsRefusedNamingTheSource) {
  for (const std::string_view text :
       {"", "{", "{\"a\":}", "{} x", "[1,]", "nul", "\"\xff\"", "01", "NaN", "{\"a\" 1}", "'a'"}) {
    const Result<json::value> value = parse_json(text, "config.json");
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

TEST(Find, NullIsAbsent) {
  const json::object object = object_of(R"({"a": null, "b": 0})");
  EXPECT_EQ(find(object, "a"), nullptr);
  EXPECT_NE(find(object, "b"), nullptr);
  EXPECT_EQ(find(object, "c"), nullptr);
}

TEST(ParseKeptObject, NumbersComeBackAsTheyWere) {
  const std::string text =
      R"({"a":[-9223372036854775808,18446744073709551615,0.1],"1e999 \"":"9e9999","b":{"c":1E300}})";
  const auto object = parse_kept_object(text, "metadata");
  ASSERT_TRUE(object.ok()) << object.error().message;
  EXPECT_EQ(parse_json(json::serialize(*object), "again").value(), json::value(*object));
  EXPECT_EQ(object->at("a").at(0), INT64_MIN);
  EXPECT_EQ(object->at("a").at(1), UINT64_MAX);
}

// Boost.JSON alone is off by the last bit for one of four.
TEST(ParseJson, EveryDoubleIsTheNearestToItsText) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) {
      const std::string text = json::serialize(json::value(value));
      ASSERT_EQ(parse_json(text, "a number").value(), json::value(value)) << text;
    }
  }
}

TEST(ParseKeptObject, NumbersThatWouldNotAreRefused) {
  for (const std::string number :
       {"18446744073709551616", "-9223372036854775809", "1180591620717411303424", "1e400"}) {
    const auto object = parse_kept_object(R"({"a": {"b": ["7", )" + number + "]}}", "metadata");
    ASSERT_FALSE(object.ok()) << number;
    EXPECT_EQ(object.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(object.error().message, "metadata holds the number " + number +
                                          ", which 64 bits cannot; give it as a string");
  }
  EXPECT_EQ(parse_kept_object("[1]", "metadata").error().message, "metadata must be an object");
}

TEST(KeptObject, IsItsTextWithoutBlanks) {
  EXPECT_EQ(kept_object(R"( {"b" : [1, 0.1], "a": null} )", "metadata").value(),
            R"({"b":[1,1E-1],"a":null})");
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

TEST(GetInt, TakesIntegersHoweverWritten) {
  const json::object object =
      object_of(R"({"a": -3, "b": 4.0, "c": 1e3, "d": 9223372036854775807})");
  EXPECT_EQ(*get_int(object, "a", 0), -3);
  EXPECT_EQ(*get_int(object, "b", 0), 4);
  EXPECT_EQ(*get_int(object, "c", 0), 1000);
  EXPECT_EQ(*get_int(object, "d", 0), INT64_MAX);
  EXPECT_EQ(*get_int(object, "absent", 7), 7);
}

TEST(GetInt, RefusesWhatIsNoIntegerNamingTheKey) {
  const json::object object = object_of(
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
  const json::object object = object_of(R"({"a": 1, "b": 0.25, "c": 18446744073709551615})");
  EXPECT_EQ(*get_double(object, "a", 0), 1.0);
  EXPECT_EQ(*get_double(object, "b", 0), 0.25);
  EXPECT_EQ(*get_double(object, "c", 0), 18446744073709551616.0);
  EXPECT_EQ(*get_double(object, "absent", 2.5), 2.5);
  EXPECT_FALSE(get_double(object_of(R"({"a": "1"})"), "a", 0).ok());
}

TEST(GetBool, TakesOnlyTrueAndFalse) {
  const json::object object = object_of(R"({"a": true, "b": 1, "c": null})");
  EXPECT_TRUE(*get_bool(object, "a", false));
  EXPECT_FALSE(get_bool(object, "b", false).ok());
  EXPECT_TRUE(*get_bool(object, "c", true));
}

TEST(GetString, TakesOnlyStrings) {
  const json::object object = object_of(R"({"a": "x\u00e9", "b": 1})");
  EXPECT_EQ(*get_string(object, "a", ""), "x\u00e9");
  EXPECT_FALSE(get_string(object, "b", "").ok());
  EXPECT_EQ(*get_string(object, "absent", "fallback"), "fallback");
}

}  // namespace
}  // namespace quire::base
