# Counts test cases in files of Catch2's XML reporter (versions 2 and 3): prints "PASSED FAILED".
# A case without a result (the program died in it) has failed.
/<TestCase / {
  if (open) failed++
  open = 1
}
open && /<OverallResult / {
  if (/ skips="[1-9]/) skipped++
  else if (/ success="true"/) passed++
  else failed++
  open = 0
}
END {
  if (open) failed++
  print passed + 0, failed + 0
}
