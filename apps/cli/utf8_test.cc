#include "utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "quire/result.h"

namespace quire::cli {
namespace {

TEST(Utf8, CharactersOfEveryLengthAndTheLimitsBetweenThemAreTaken) {
  for (const std::string text :
       {"", "plain", "Zürich", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
        "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "日本語 🦆"}) {
    EXPECT_EQ(refuse_no_utf8(text), "") << text;
  }
  EXPECT_EQ(refuse_no_utf8(std::string(3, '\0')), "");
}

TEST(Utf8, BytesThatAreNoCharacterAreRefused) {
  for (const std::string bytes :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x82",
        "\xE2(\x82", "\xE2\x82(", "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xF0\x9F\xA6", "\xFE", "\xFF"}) {
    EXPECT_NE(refuse_no_utf8(bytes), "") << testing::PrintToString(bytes);
    EXPECT_NE(refuse_no_utf8("ü" + bytes + "x"), "") << testing::PrintToString(bytes);
  }
}

TEST(Utf8, ARefusalNamesTheTextThePlaceAndTheByte) {
  const Status refused = check_utf8("Z\xFCrich", "the prompt");
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(refused.error().message.starts_with("the prompt: byte 2 (0xFC) is not UTF-8"));
  EXPECT_TRUE(check_utf8("Zürich", "the prompt").ok());
}

// Oracle: bytes.decode(errors="replace") of Python.
TEST(Utf8, EachRunOfBytesThatIsNoCharacterBecomesOneReplacement) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(repair_utf8("Caf\xE9.", "the card"), "Caf\uFFFD.");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::StartsWith("note: the card: byte 4 (0xE9) is not UTF-8"));
  EXPECT_EQ(repair_utf8("\xE2\x82x\xF0\x9F\xA6", ""), "\uFFFDx\uFFFD");
  EXPECT_EQ(repair_utf8("\xED\xA0\x80", ""), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repair_utf8("\xC3\xC3\xBC", ""), "\uFFFDü");
  testing::internal::CaptureStderr();
  EXPECT_EQ(repair_utf8("Zürich", ""), "Zürich");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace quire::cli
