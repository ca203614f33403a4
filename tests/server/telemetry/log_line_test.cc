// Goal: whatever bytes a peer or a disk puts into a message, a line stays one line, and its fields
// are ours with the values that were meant.
// Method: hostile and random bytes go into every text of a line; strict parsers read it back.

#include "server/telemetry/log_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "server/telemetry/escape.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::Key;

const std::vector<std::string>& HostileTexts() {
  static const std::vector<std::string> texts = {
      "plain words, nothing more",
      "",
      "line\n2026-01-01T00:00:00.000Z error forged",
      "quote \" msg=\"forged\" level=error",
      "\",\"level\":\"error\",\"x\":\"",
      "back\\slash \\\" \\n",
      "equal=sign a=b",
      "tab\tcarriage\rnull" + std::string(1, '\0') + "bell\a",
      "\x1b[31mred\x1b[0m \x7f",
      std::string("C1 \xc2\x9b") + "31m and NEL \xc2\x85",
      "separators \xe2\x80\xa8 \xe2\x80\xa9",
      std::string("turned \xe2\x80\xae") + "gnp.exe \xe2\x81\xa6",
      "not UTF-8 \xff\xfe \xc3( \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf cut \xe2\x82",
      "<0>priority",
      "\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82",
  };
  return texts;
}

LogLine LineOf(std::string_view text) {
  LogLine line;
  line.unix_ms = 1'795'600'550'123;
  line.level = spdlog::level::warn;
  line.text = text;
  line.file = "/build/server/upkeep/scrubber.cc";
  line.line = 87;
  line.thread = 71;
  return line;
}

std::string Format(LogFormat format, const LogLine& line, const std::string& name = "h1",
                   bool under_journald = false) {
  LogStyle style;
  style.format = format;
  style.under_journald = under_journald;
  style.name = name;
  style.roles = "holder";
  std::string out;
  AppendLogLine(style, line, out);
  return out;
}

// Fields of a logfmt line. A value in quotes has the escapes of JSON. Any other byte is an error.
std::map<std::string, std::string> ParseLogfmt(std::string_view text) {
  std::map<std::string, std::string> fields;
  while (!text.empty()) {
    const size_t equal = text.find('=');
    if (equal == std::string_view::npos) return {{"no equal sign", std::string(text)}};
    const std::string name(text.substr(0, equal));
    text.remove_prefix(equal + 1);
    size_t end = 0;
    if (text.starts_with('"')) {
      for (end = 1; end < text.size() && text[end] != '"'; ++end) end += text[end] == '\\' ? 1 : 0;
      ++end;
    } else {
      end = std::min(text.find(' '), text.size());
    }
    const std::string value(text.substr(0, end));
    text.remove_prefix(end);
    const bool once =
        fields
            .emplace(name, value.starts_with('"') ? nlohmann::json::parse(value).get<std::string>()
                                                  : value)
            .second;
    if (!once || (!text.empty() && text[0] != ' ')) return {{"broken at", std::string(text)}};
    if (!text.empty()) text.remove_prefix(1);
  }
  return fields;
}

// `text` with U+FFFD for each byte that is no UTF-8.
std::string Repaired(std::string_view text) {
  std::string quoted = "\"";
  AppendJsonText(text, quoted);
  return nlohmann::json::parse(quoted + "\"").get<std::string>();
}

bool IsUtf8(std::string_view text) {
  return nlohmann::json(text)
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
             .find("\xef\xbf\xbd") == std::string::npos;
}

void ExpectOneLine(const std::string& out) {
  ASSERT_FALSE(out.empty());
  EXPECT_EQ(out.find('\n'), out.size() - 1) << out;
  for (const char c : out.substr(0, out.size() - 1)) {
    EXPECT_TRUE(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f) << out;
  }
}

TEST(LogLine, TheThreeFormatsHaveTheseFieldsInThisOrder) {
  const LogLine line = LineOf("chunk ab is damaged");
  EXPECT_EQ(Format(LogFormat::kText, line),
            "2026-11-25T09:55:50.123Z warning chunk ab is damaged\n");
  EXPECT_EQ(Format(LogFormat::kLogfmt, line),
            "ts=2026-11-25T09:55:50.123Z level=warn name=h1 role=holder src=scrubber.cc:87 tid=71 "
            "msg=\"chunk ab is damaged\"\n");
  EXPECT_EQ(Format(LogFormat::kJson, line),
            "{\"ts\":\"2026-11-25T09:55:50.123Z\",\"level\":\"warn\",\"name\":\"h1\",\"role\":"
            "\"holder\",\"src\":\"scrubber.cc:87\",\"tid\":71,\"msg\":\"chunk ab is damaged\"}\n");
}

TEST(LogLine, HostileTextForgesNeitherALineNorAField) {
  for (const std::string& text : HostileTexts()) {
    SCOPED_TRACE(text);
    for (const std::string& name : {std::string("h1"), text}) {
      const LogLine line = LineOf(text);
      ExpectOneLine(Format(LogFormat::kText, line, name));

      const std::string logfmt = Format(LogFormat::kLogfmt, line, name);
      ExpectOneLine(logfmt);
      auto fields = ParseLogfmt(std::string_view(logfmt).substr(0, logfmt.size() - 1));
      EXPECT_EQ(fields["level"], "warn");
      EXPECT_EQ(fields["role"], "holder");
      EXPECT_EQ(fields["msg"], Repaired(text));
      EXPECT_EQ(fields["name"], Repaired(name));

      const std::string json = Format(LogFormat::kJson, line, name);
      ExpectOneLine(json);
      const auto parsed = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(parsed.is_object()) << json;
      EXPECT_EQ(parsed["level"], "warn");
      EXPECT_EQ(parsed.value("msg", ""), Repaired(text));
      EXPECT_EQ(parsed.value("name", ""), Repaired(name));
    }
  }
}

TEST(LogLine, KeepsUnchangedText) {
  for (const std::string& text : HostileTexts()) {
    if (!IsUtf8(text)) continue;
    EXPECT_EQ(Repaired(text), text);
  }
}

TEST(LogLine, RandomBytesStayOneLineOfEachFormat) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    std::string text(rng() % 64, '\0');
    for (char& c : text) c = static_cast<char>(rng());
    const LogLine line = LineOf(text);
    ExpectOneLine(Format(LogFormat::kText, line));
    const std::string logfmt = Format(LogFormat::kLogfmt, line);
    ExpectOneLine(logfmt);
    const auto fields = ParseLogfmt(std::string_view(logfmt).substr(0, logfmt.size() - 1));
    const size_t count = text.empty() ? 6 : 7;
    EXPECT_EQ(fields.size(), count) << logfmt;
    const std::string json = Format(LogFormat::kJson, line);
    ExpectOneLine(json);
    const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(parsed.is_object()) << json;
    EXPECT_EQ(parsed.size(), count);
  }
}

TEST(LogLine, UnderJournaldLinesHaveThePrioritiesOfSyslogAndNoTime) {
  LogLine line = LineOf("drained");
  const std::pair<spdlog::level::level_enum, std::string> levels[] = {
      {spdlog::level::trace, "<7>"}, {spdlog::level::debug, "<7>"},
      {spdlog::level::info, "<6>"},  {spdlog::level::warn, "<4>"},
      {spdlog::level::err, "<3>"},   {spdlog::level::critical, "<2>"}};
  for (const auto& [level, prefix] : levels) {
    line.level = level;
    for (const LogFormat format : {LogFormat::kText, LogFormat::kLogfmt, LogFormat::kJson}) {
      const std::string out = Format(format, line, "h1", /*under_journald=*/true);
      EXPECT_THAT(out, testing::StartsWith(prefix));
      EXPECT_THAT(out, testing::Not(testing::HasSubstr("2026")));
    }
  }
  const std::string json = Format(LogFormat::kJson, line, "h1", /*under_journald=*/true);
  EXPECT_TRUE(nlohmann::json::parse(json.substr(3), nullptr, false).is_object()) << json;
}

// A peer chooses how long its error text is.
TEST(LogLine, ALongTextIsCutBetweenCharactersAndCounted) {
  std::string text(kLogTextBytesMax - 1, 'a');
  text += "\xe2\x82\xac and more";
  const std::string json = Format(LogFormat::kJson, LineOf(text));
  const std::string message = nlohmann::json::parse(json)["msg"];
  EXPECT_EQ(message, std::string(kLogTextBytesMax - 1, 'a') + "... (12 bytes more)");
  // Whatever the text is, journald takes the line whole.
  const std::string escapes(2 * kLogTextBytesMax, '\x1b');
  EXPECT_LT(Format(LogFormat::kJson, LineOf(escapes)).size(), size_t{48} << 10);
}

TEST(LogLine, JournaldIsTheStreamThatTheVariableNames) {
  FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  struct stat found {};
  ASSERT_EQ(fstat(fileno(file), &found), 0);
  const std::string named = std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino);
  EXPECT_TRUE(IsJournal(named.c_str(), fileno(file)));
  EXPECT_FALSE(IsJournal((named + "1").c_str(), fileno(file)));
  EXPECT_FALSE(IsJournal("", fileno(file)));
  EXPECT_FALSE(IsJournal(nullptr, fileno(file)));
  EXPECT_FALSE(IsJournal(named.c_str(), -1));
  std::fclose(file);
}

TEST(LogLine, FormatsHaveTheWordsOfTheOption) {
  EXPECT_EQ(ParseLogFormat("text").value(), LogFormat::kText);
  EXPECT_EQ(ParseLogFormat("logfmt").value(), LogFormat::kLogfmt);
  EXPECT_EQ(ParseLogFormat("json").value(), LogFormat::kJson);
  EXPECT_EQ(ParseLogFormat("xml").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckv
