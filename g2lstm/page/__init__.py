"""What our pages share, served or exported: the palette, the style, heat maps of gates, next words, attention."""
