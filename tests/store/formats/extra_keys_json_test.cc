#include "store/formats/extra_keys_json.h"

#include <gtest/gtest.h>

#include <string>

namespace ckv {
namespace {

TEST(ExtraKeysJson, RoundTripsKeys) {
  const ExtraKeys keys = {
      {-2, 9, std::string(64, '\x7f')}, {0, 0, "a"}, {3, 1, std::string(1, '\0')}};
  const std::string text = FormatExtraKeys(keys);
  const auto parsed = ParseExtraKeysText(text, 10, "keys");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, keys);
  EXPECT_EQ(FormatExtraKeys({}), "[]");
  EXPECT_TRUE(ParseExtraKeysText("[]", 10, "keys")->empty());
}

TEST(ExtraKeysJson, NamesTheInvalidKey) {
  struct Case {
    const char* text;
    const char* why;
  };
  for (const Case& c : {
           Case{"{}", "keys: must be an array"},
           Case{"[1]", "keys[0]: must be an object"},
           Case{R"([{"begin": 1, "digest": "00"}])", "keys[0]: tokens: is missing"},
           Case{R"([{"tokens": 1, "digest": "00"}])", "keys[0]: begin: is missing"},
           Case{R"([{"begin": 1, "tokens": 1}])", "keys[0]: digest: is missing"},
           Case{R"([{"digest": "00", "at": 3}])", "keys[0]: 'at': is not known"},
           Case{R"([{"begin": 1.5, "tokens": 1, "digest": "00"}])", "begin: must be a whole"},
           Case{R"([{"begin": "1", "tokens": 1, "digest": "00"}])", "begin: must be a whole"},
           Case{R"([{"begin": 9999999999999999999, "tokens": 1, "digest": "00"}])", "begin: 99"},
           Case{R"([{"begin": 1, "tokens": 0, "digest": "00"}])", "tokens: must be at least 1"},
           Case{R"([{"begin": 1, "tokens": -1, "digest": "00"}])", "tokens: must be a whole"},
           Case{R"([{"begin": 1, "tokens": 4294967296, "digest": "00"}])", "less than 2^32"},
           Case{R"([{"digest": "0"}])", "digest: must be 1 to 64 bytes"},
           Case{R"([{"digest": "0g"}])", "digest: must be 1 to 64 bytes"},
           Case{R"([{"digest": ""}])", "a digest of 0 bytes"},
           Case{R"([{"digest": 7}])", "digest: must be a string"},
           Case{R"([{"digest": "00"}, {"digest": "00"}])", "twice"},
           Case{R"([{"begin": 10, "tokens": 1, "digest": "00"}])", "are none of the 10"},
           Case{"[[[]]]", "keys"},
           Case{"[", "keys"},
       }) {
    const absl::Status status = ParseExtraKeysText(c.text, 10, "keys").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.text;
    EXPECT_NE(std::string(status.message()).find(c.why), std::string::npos)
        << c.text << ": " << status;
  }
  std::string many = "[";
  for (size_t i = 0; i <= kExtraKeysMax; ++i) many += R"({"digest":"00"},)";
  many.back() = ']';
  EXPECT_FALSE(ParseExtraKeysText(many, 10, "keys").ok());
}

}  // namespace
}  // namespace ckv
