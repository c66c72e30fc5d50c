# Prints the failures in a file of Catch2's XML reporter (versions 2 and 3), for a person to read.
function text(line) {
  gsub(/<[^>]*>/, "", line)
  gsub(/&lt;/, "<", line)
  gsub(/&gt;/, ">", line)
  gsub(/&quot;/, "\"", line)
  gsub(/&amp;/, "\\&", line)
  return line
}
function attribute(line, name) {
  if (!match(line, " " name "=\"[^\"]*\"")) return ""
  return text(substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 4))
}
/<TestCase / {
  test = attribute($0, "name")
  announced = 0
}
/<(Expression|Failure|Exception|FatalErrorCondition|Info|Warning)[ >]/ {
  inside = 1
  if (!announced) print (/<Warning/ ? "warning: " : "FAILED: ") test
  announced = 1
  if (/filename=/) print "  " attribute($0, "filename") ":" attribute($0, "line") ": " attribute($0, "type")
}
inside {
  line = text($0)
  if (line !~ /^[ \t]*$/) print "  " line
}
/<\/(Expression|Failure|Exception|FatalErrorCondition|Info|Warning)>/ { inside = 0 }
