"""Operations: status, staleness numbers, the plain pipeline runner."""
